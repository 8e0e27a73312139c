// Where this gateway sends clients, and why: the decisions of operators, and one client with every input and score.

import { h, table, number, ms, badge, time } from "./dom.js";
import { get, query } from "./api.js";
import { act, doer, field, notice } from "./act.js";

const view = { client: "", address: "", topic: "", found: null, note: "" };

const decide = async (context, kind, subject, value, explain) => {
  const verb = value ? { pin: "Pin", drain: "Drain", freeze: "Freeze" }[kind] : "Take back";
  if (await act({ title: `${verb}: ${kind} ${subject}`, explain: h("p", {}, explain), method: "POST", path: `/v1/routes/${kind}`, body: { subject, value }, button: verb })) {
    notice("decided; the other gateways follow within half a minute");
    context.reload();
  }
};

function pin(event, context) {
  event.preventDefault();
  const form = new FormData(event.target);
  const subject = form.get("subject"), region = form.get("region");
  return decide(context, "pin", subject, region, `${subject} is sent to ${region} while that can be used, however far it is.`);
}

async function explain(event, context) {
  event.preventDefault();
  const form = new FormData(event.target);
  for (const name of ["client", "address", "topic"]) view[name] = form.get(name);
  try {
    view.found = await get(query("/v1/routes/explain", { client: view.client, address: view.address, topic: view.topic }));
    view.note = "";
  } catch (error) { view.found = null; view.note = error.message; }
  context.render();
}

function rules({ rules: rows, frozen }, context) {
  return [
    frozen ? h("div.banner.inconclusive", { role: "status" }, h("strong", {}, "Frozen"), h("span", {}, "no client is moved to another region, unless its own is gone")) : null,
    table(["decision", "about", "is", "by", "since (UTC)", ""], rows.map((rule) => [rule.kind, h("b", {}, rule.subject), rule.value, rule.by, time(rule.made_us / 1000), doer("Take back…", { "aria-label": `Take back ${rule.kind} ${rule.subject}`, onclick: () => decide(context, rule.kind, rule.subject, "", "Clients are placed by cost again.") })]), { empty: "nothing was decided: every client goes to its cheapest region", caption: "Decisions" }),
  ];
}

const TITLES = { cost_ms: "cost", estimate_ms: "estimate", error_ms: "may err by", source: "known by", home_ms: "to the home", penalty_ms: "added", shed: "sheds", hash: "its place" };

function why(found) {
  const legs = found.gateway_ms ?? {};
  return [
    h("p.answer", {}, "Goes to ", h("b", {}, found.chosen || "no region"), `: ${found.reason}`, found.degraded ? " (this gateway may be the isolated one)" : ""),
    h("dl.facts", {},
      h("dt", {}, "was sent to"), h("dd", {}, found.incumbent.region ? `${found.incumbent.region}, for ${number(found.incumbent.for_s)} s` : "nowhere yet"),
      h("dt", {}, "kernel's round trip"), h("dd", {}, found.kernel_ms === null ? "not measured" : ms(found.kernel_ms)),
      h("dt", {}, "better one"), h("dd", {}, found.challenger ? `${found.challenger} by ${ms(found.gain_ms)}; it takes ${ms(found.margin_ms)}, three times (${found.confirmations} so far)` : "none")),
    table(["region", { title: "from this gateway", number: true }, { title: "it measured", number: true }, ...Object.keys(found.regions[0] ?? {}).filter((name) => name !== "region").map((name) => TITLES[name] ?? name.replaceAll("_", " "))],
      found.regions.map((row) => [h("b", {}, row.region), ms(legs[row.region] ?? null), row.region in found.observed_ms ? ms(found.observed_ms[row.region]) : "nothing", ...Object.entries(row).filter(([name]) => name !== "region").map(([name, value]) => (name.endsWith("_ms") ? ms(value) : name === "why_not" && !value.length ? "nothing" : Array.isArray(value) ? value.join(", ") : String(value ?? "")))]), { caption: "Regions by cost" }),
    h("p.note", {}, "Cost is the estimated round trip, the way to the topic's home, and what is added while a region says nothing of its load. Less than 2 ms is no difference: then the configured order decides. A region that is too busy sheds the clients whose place is below the share that it sheds."),
  ];
}

export const clientsPage = {
  path: "clients", title: "Clients", every: 10_000,
  load: () => get("/v1/routes"),
  show: (data, _route, context) => [
    h("h1", {}, "Clients"),
    h("p.soft", {}, "A gateway sends each client to the region that is cheapest for it, and keeps it there unless another is clearly better."),
    rules(data, context),
    h("div.buttons", {},
      doer(data.frozen ? "Let clients move again…" : "Freeze switching…", { onclick: () => decide(context, "freeze", "switching", data.frozen ? "" : "frozen", data.frozen ? "Clients are moved by cost again." : "Until it is taken back no client is moved to another region, unless its own is gone.") }, "plain"),
      context.regions.map((name) => doer(`Drain ${name}…`, { onclick: () => decide(context, "drain", name, "clients", `New clients go elsewhere, and those of ${name} follow. Its homes stay.`) }, "plain"))),
    h("h2", {}, "Pin a client, or a prefix of addresses, to a region"),
    h("form.inline", { onsubmit: (event) => pin(event, context) },
      field("Client or prefix", h("input", { name: "subject", required: true, maxlength: "128", autocomplete: "off", spellcheck: "false", placeholder: "billing-7 or 10.1.2.0/24" })),
      field("Region", h("select", { name: "region" }, context.regions.map((name) => h("option", {}, name)))),
      doer("Pin…", { type: "submit" }, "main")),
    h("h2", {}, "Why does a client go where it goes?"),
    h("form.inline", { onsubmit: (event) => explain(event, context) },
      field("Client", h("input", { name: "client", value: view.client, autocomplete: "off", placeholder: "its name" })),
      field("Address", h("input", { name: "address", value: view.address, autocomplete: "off", placeholder: "yours" })),
      field("Publishes to", h("input", { name: "topic", value: view.topic, autocomplete: "off", placeholder: "no topic" })),
      h("button", { type: "submit" }, "Explain")),
    view.note ? h("p.error", { role: "alert" }, view.note) : null,
    view.found ? why(view.found) : null,
  ],
};
