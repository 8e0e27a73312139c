// What the brokers of a region wrote down: refused sign-ins, denials, changes. The newest first, page by page.

import { h, table, badge } from "./dom.js";
import { curl, get, query } from "./api.js";
import { field, tabs } from "./act.js";

const LIMIT = 50;
const EVENTS = ["sign_in.refused", "access.denied", "cluster.changed", "security.changed", "security.ordered"];
const STATE = { "sign_in.refused": "breach", "access.denied": "breach" };
const TOLD = new Set(["id", "written_by", "timestamp", "event", "host", "grant", "what"]);
const view = { region: "", event: "", before: [""] };

const from = (region) => {
  if (view.region !== region) Object.assign(view, { region, before: [""] });
  return query("/v1/audit/events", { region, event: view.event, limit: LIMIT, before: view.before.at(-1) });
};

function line(row) {
  const actor = ["principal", "user", "by"].find((name) => row[name]);
  const rest = Object.entries(row).filter(([name, value]) => !TOLD.has(name) && name !== actor && !(name === "outcome" && value === "done"));
  const about = [row.what, ...rest.map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`)].filter(Boolean).join(" · ");
  return [
    row.timestamp.replace("T", " ").slice(0, 23), badge(row.outcome && row.outcome !== "done" ? "inconclusive" : STATE[row.event] ?? "pass", row.event),
    h("b", {}, row[actor] ?? "-"), row.host ?? "", [about, row.grant ? h("span.block", {}, "to allow it: ", h("code", {}, row.grant)) : null], row.written_by,
  ];
}

export const auditLogPage = {
  path: "log", title: "Audit log", every: 10_000,
  load: ([region], context) => get(from(region ?? context.regions[0])),
  show: (data, [region], context) => {
    const at = region ?? context.regions[0];
    const turn = (change) => { change(); context.reload(); };
    const choose = (event) => turn(() => Object.assign(view, { event: event.target.value, before: [""] }));
    return [
      h("h1", {}, "Audit log"),
      h("p.soft", {}, "Refused sign-ins, what somebody was not allowed, and every change: by whom, from where, and what became of it. Times are UTC."),
      tabs(context.regions, at, (name) => `#/log/${name}`, "Region"),
      h("div.toolbar", {}, field("Events", h("select", { onchange: choose }, h("option", { value: "" }, "all"), EVENTS.map((name) => h("option", { value: name, selected: name === view.event }, name)))), h("span.grow", {}),
        h("button.plain", { type: "button", disabled: view.before.length < 2, onclick: () => turn(() => view.before.pop()) }, "Newer"),
        h("button.plain", { type: "button", disabled: !data.next, onclick: () => turn(() => view.before.push(data.next)) }, "Older")),
      data.unheard.length ? h("p.banner.inconclusive", { role: "status" }, h("strong", {}, "Not all"), h("span", {}, `not heard, their events are missing: broker ${data.unheard.join(", ")}`)) : null,
      table(["time", "event", "who", "from", "about", { title: "written by broker", number: true }], data.events.map(line), { empty: "nothing was written down", caption: "Audit log" }),
      h("details.curl", {}, h("summary", {}, "The same as a command"), h("pre", {}, curl("GET", from(at)))),
    ];
  },
};
