// Users, tokens, access control lists and quotas.

import { h, table, number, bytes, badge, time } from "./dom.js";
import { curl, get, send } from "./api.js";
import { act, doer, field, notice } from "./act.js";

const RESOURCES = ["topic", "group", "cluster", "transactional_id"];
const OPERATIONS = ["read", "write", "create", "delete", "alter", "describe", "cluster_action", "describe_configs", "alter_configs", "idempotent_write", "all"];
const at = (seconds) => (seconds === null ? "never" : time(seconds * 1000).slice(0, 10));

async function run(context, options, said) {
  const answer = await act(options);
  if (answer) { notice(said); context.reload(); }
  return answer;
}

// A password is never shown as a part of a command: the form sends it, and the command beside it names none.
async function createUser(event, context) {
  event.preventDefault();
  const form = new FormData(event.target);
  try {
    await send("POST", "/v1/users", { name: form.get("name"), password: form.get("password") });
    event.target.reset();
    notice(`created user ${form.get("name")}`);
    context.reload();
  } catch (error) { notice(error.message); }
}

function users(data, context) {
  return [
    table(["user", "state", "signs in with", "expires", "tokens", ""], data.users.map((user) => [
      h("b", {}, user.name), badge(user.enabled ? "pass" : "breach", user.enabled ? "enabled" : "disabled"), user.mechanisms.join(", "), at(user.expires_s),
      user.tokens.map((token) => h("span.block", {}, `${token.name} until ${at(token.expires_s)} `, doer("End…", { "aria-label": `End token ${token.name} of ${user.name}`, onclick: () => run(context, { title: `End token ${token.name} of ${user.name}`, method: "DELETE", path: `/v1/users/${encodeURIComponent(user.name)}/tokens/${encodeURIComponent(token.name)}`, button: "End it" }, "the token has ended") }))),
      [doer(user.enabled ? "Disable…" : "Enable…", { onclick: () => run(context, { title: `${user.enabled ? "Disable" : "Enable"} ${user.name}`, method: "PATCH", path: `/v1/users/${encodeURIComponent(user.name)}`, body: { enabled: !user.enabled } }, "changed") }), " ",
        doer("Delete…", { onclick: () => run(context, { title: `Delete user ${user.name}`, method: "DELETE", path: `/v1/users/${encodeURIComponent(user.name)}`, typed: user.name, button: "Delete", danger: true }, "deleted") }, "danger")],
    ]), { empty: "no users of the mesh; those of a users file are not listed", caption: "Users" }),
    h("details.make", {}, h("summary", {}, "Create a user"), h("form.inline", { onsubmit: (event) => createUser(event, context) },
      field("Name", h("input", { name: "name", required: true, autocomplete: "off" })), field("Password", h("input", { name: "password", type: "password", required: true, autocomplete: "new-password" })), doer("Create", { type: "submit" }, "main")),
      h("details.curl", {}, h("summary", {}, "The same as a command"), h("pre", {}, curl("POST", "/v1/users", { name: "NAME", password: "PASSWORD" })))),
  ];
}

function acls(data, context) {
  const add = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const entry = Object.fromEntries(["resource", "name", "pattern", "principal", "operation", "permission"].map((name) => [name, form.get(name)]));
    run(context, { title: "Add an entry", method: "POST", path: "/v1/acls", body: { entries: [{ ...entry, host: "*" }] }, button: "Add" }, "added");
  };
  const select = (name, values) => h("select", { name }, values.map((value) => h("option", {}, value)));
  return [
    table(["who", "may", "what", "name", "from", ""], data.entries.map((entry) => [
      h("b", {}, entry.principal), [badge(entry.permission === "allow" ? "pass" : "breach", entry.permission), " ", entry.operation], entry.resource, entry.pattern === "prefixed" ? `${entry.name}…` : entry.name, entry.host,
      doer("Remove…", { "aria-label": `Remove ${entry.permission} ${entry.operation} of ${entry.principal}`, onclick: () => run(context, { title: "Remove this entry", method: "POST", path: "/v1/acls/remove", body: { entries: [entry] }, button: "Remove", danger: true }, "removed") }),
    ]), { empty: "no entries", caption: "Access control lists" }),
    h("details.make", {}, h("summary", {}, "Add an entry"), h("form.inline", { onsubmit: add },
      field("Who", h("input", { name: "principal", value: "User:", required: true })), field("Permission", select("permission", ["allow", "deny"])), field("Operation", select("operation", OPERATIONS)),
      field("Of", select("resource", RESOURCES)), field("Name", h("input", { name: "name", required: true })), field("Which is", select("pattern", ["literal", "prefixed"])), doer("Add…", { type: "submit" }, "main"))),
  ];
}

const limit = (value, shown) => (value === null ? "no limit" : shown(value));

export const securityPage = {
  path: "security", title: "Security", every: 10_000,
  async load() {
    const or = (path, empty) => get(path).catch((error) => (error.status === 403 ? { ...empty, denied: true } : Promise.reject(error)));
    const [whoami, found, lists, quotas] = await Promise.all([get("/v1/whoami"), or("/v1/users", { users: [] }), or("/v1/acls", { entries: [] }), or("/v1/quotas", { quotas: [] })]);
    return { whoami, found, lists, quotas };
  },
  show: ({ whoami, found, lists, quotas }, _route, context) => {
    const denied = h("p.soft", {}, "You may not see these.");
    return [
      h("h1", {}, "Security"),
      h("p", {}, "You are ", h("b", {}, whoami.principal || "nobody in particular"), whoami.is_super_user ? ", who may do everything" : "", whoami.sign_in_required ? "." : ". Nobody has to sign in here."),
      h("h2", {}, "Users"), found.denied ? denied : users(found, context),
      h("h2", {}, "Access control lists"), lists.denied ? denied : acls(lists, context),
      h("h2", {}, "Quotas"), quotas.denied ? denied.cloneNode(true) : table(["who", { title: "publishes at most", number: true }, { title: "reads at most", number: true }, { title: "share of a broker's time", number: true }],
        quotas.quotas.map((row) => [row.principal, limit(row.produce_bytes_per_s, (value) => `${bytes(value)}/s`), limit(row.fetch_bytes_per_s, (value) => `${bytes(value)}/s`), limit(row.request_share_ppm, (value) => `${number(value / 10_000)} %`)]), { empty: "no quotas", caption: "Quotas" }),
    ];
  },
};
