// The first screen: is the mesh well, where does it hurt, what to do, and what would be lost.

import { h, ms, number, many, badge, time, age } from "./dom.js";
import { map } from "./map.js";

const SLA = { PASS: "pass", BREACH: "breach", "NOT PROVEN": "inconclusive" };
const DOT = { ok: "✓", passing: "…", behind: "▲", cut: "✕", diverged: "✕", silent: "?", none: "–" };

function headline(overview) {
  const alarms = overview.alarms.length;
  if (overview.verdict === "ok") return ["pass", "All well", "every region answers, every mirror is in step"];
  const breaches = overview.pairs.filter((pair) => pair.sla.state === "BREACH").length;
  if (!alarms) return ["inconclusive", "Late", `${many(breaches, "pair")} of regions later than promised`];
  const rest = alarms === 1 ? "what it is, and what to do, is below" : "the worst first; each says what to do";
  return overview.verdict === "alarm" ? ["breach", many(alarms, "alarm"), rest] : ["inconclusive", many(alarms, "warning"), rest];
}

function alarmList(overview) {
  if (!overview.alarms.length) return null;
  return h("ul.alarms", { "aria-label": "Alarms" }, overview.alarms.slice(0, 12).map((alarm) =>
    h(`li.${alarm.severity}`, {}, h("b", {}, alarm.what), h("span.advice", {}, "What to do: ", alarm.advice))),
    overview.alarms.length > 12 ? h("li", {}, `and ${overview.alarms.length - 12} more`) : null);
}

function latency(pair) {
  const floor = pair.floor_ms === null ? "floor not measured" : `floor ${ms(pair.floor_ms)}`;
  return pair.sla.p99_ms === null ? floor : `p99 ${ms(pair.sla.p99_ms)}, ${floor}`;
}

function pairRow(pair) {
  return h(`li.pair.${pair.state}`, { "data-key": `${pair.origin}-${pair.dest}` },
    h("span.way", {}, h("b", {}, pair.origin), " → ", h("b", {}, pair.dest)),
    h("span.state", {}, h("span.dot", { "aria-hidden": "true" }, DOT[pair.state]), pair.words,
      pair.cause ? h("small", {}, pair.cause) : null),
    h("span.lag", {}, pair.lag_records === null ? "lag not known" : `${many(pair.lag_records, "record")}, ${ms(pair.lag_ms)} behind`,
      h("small", {}, latency(pair))),
    h("span.sla", {}, badge(SLA[pair.sla.state], pair.sla.state), h("small", {}, pair.sla.records ? pair.sla.words : "")));
}

const known = (count) => (count === null ? "not known yet" : number(count));

function regionCard(region, control) {
  const state = region.state === "ready" ? "pass" : region.state === "silent" ? "breach" : "inconclusive";
  const leads = control?.leader_region === region.name;
  return h(`article.card.${state}`, { "data-key": region.name },
    h("h3", {}, region.name, " ", badge(state, region.state === "silent" ? "silent" : region.words)),
    region.state === "silent" ? h("p.answer", {}, region.words) : null,
    h("dl", {},
      h("dt", {}, "home of"), h("dd", {}, `${many(region.homes, "partition")}, ${many(region.topics, "topic")}`),
      h("dt", {}, "groups, queues"), h("dd", {}, `${known(region.groups)}, ${known(region.queues)}`),
      h("dt", {}, "records to its homes"), h("dd", {}, `${number(region.records_per_s)} per second`),
      h("dt", {}, "from this gateway"), h("dd", {}, region.gateway_rtt_ms === null ? "no answer" : ms(region.gateway_rtt_ms)),
      h("dt", {}, "brokers"), h("dd", {}, region.brokers.map((broker, place) => [place ? ", " : "", h(broker.ready ? "span" : "b.bad", {}, `${broker.id}${broker.ready ? "" : " down"}`)])),
      leads ? [h("dt", {}, "leads"), h("dd", {}, "mesh control")] : null));
}

function seconds(value) {
  return value === null ? "never" : value === 0 ? "0 s" : `${value.toFixed(1)} s`;
}

function drillCard(row) {
  const lost = row.geo_lost + row.region_lost;
  return h(`article.card.${row.kept ? "pass" : "breach"}`, { "data-key": row.kind },
    h("h3", {}, row.kind.replaceAll("-", " "), " ", badge(row.kept ? "pass" : "breach", row.kept ? "kept" : "broken")),
    h("p.answer", {}, `answered again after ${seconds(row.rto_median_s)}; ${lost ? `${many(lost, "record")} lost` : "no record lost"}`),
    h("dl", {},
      h("dt", {}, "RTO, worst"), h("dd", {}, `${seconds(row.rto_worst_s)}, ${many(row.runs, "run")}`),
      h("dt", {}, "RPO"), h("dd", {}, [lost ? `${many(lost, "record")} lost` : "", row.region_orphaned ? `${many(row.region_orphaned, "record")} kept aside, the oldest ${seconds(row.rpo_worst_s)} old` : ""].filter(Boolean).join(", ") || "0 records"),
      h("dt", {}, "when"), h("dd", {}, `${time(row.began_ms).slice(0, 16)} UTC, ${age(Date.now() - row.began_ms)} ago`),
      h("dt", {}, "where"), h("dd", {}, row.is_this_mesh ? "this mesh" : `a mesh of its own: ${row.where}`)),
    row.broken.map((text) => h("p.note", {}, text)));
}

function lossCard(row, drills) {
  const nothing = row.records === 0;
  const state = !row.known ? "plain" : nothing ? "pass" : "inconclusive";
  return h(`article.card.${state}`, { "data-key": row.region },
    h("h3", {}, `If ${row.region} died now`),
    h("p.answer", {}, !row.known ? "not known: it never answered this gateway"
      : nothing ? "no record would be lost"
      : `${many(row.records, "record")} of ${many(row.records_streams, "stream")} only there: lost, or kept aside until it is back`),
    h("dl", {},
      row.automatic ? [h("dt", {}, "homes that move by themselves"), h("dd", {}, `${number(row.automatic)}, to ${row.heir || "nobody"}${inAbout(drills)}`)] : null,
      h("dt", {}, "homes that a person has to move"), h("dd", {}, row.manual ? `${number(row.manual)}, best to ${row.heir || "nobody"}` : "none"),
      row.own ? [h("dt", {}, "streams of its own that stop"), h("dd", {}, number(row.own))] : null,
      nothing ? null : [h("dt", {}, "oldest of them"), h("dd", {}, ms(row.records_ms))]),
    row.manual ? h("p.note", {}, "then: ", h("code", {}, row.command)) : null);
}

function inAbout(drills) {
  const seen = drills.find((row) => row.kind === "region-loss" && row.rto_worst_s !== null);
  return seen ? `, in about ${seconds(seen.rto_median_s)} (last drill)` : "";
}

function slaNote(overview) {
  const reasons = new Set(overview.pairs.filter((pair) => !pair.sla.records).map((pair) => pair.sla.words));
  return reasons.size ? h("p.note", {}, `NOT PROVEN: ${[...reasons].join("; ")}.`) : null;
}

export function overviewPage(overview) {
  const [state, title, rest] = headline(overview);
  return [
    h("h1.hidden", {}, "Overview"),
    h(`div.banner.${state}`, { role: "status" }, h("strong", {}, title), h("span", {}, rest), h("small", {}, overview.totals)),
    alarmList(overview),
    h("div.first", {},
      h("section.panel", { "aria-labelledby": "map-title" },
        h("h2", { id: "map-title" }, "Regions", h("small", {}, "far apart is slow: distance is the measured round trip; an arrow is records on their way from their home to a mirror")),
        map(overview, innerWidth < 640)),
      h("section.panel", { "aria-labelledby": "pairs-title" },
        h("h2", { id: "pairs-title" }, "From each region to each other", h("small", {}, "how far a mirror is behind, and whether 99.99 % of records arrive within 50 ms (last 5 minutes); the floor is half the round trip: no record can be faster")),
        h("ul.pairs", {}, overview.pairs.map(pairRow)), slaNote(overview))),
    h("h2", {}, "Regions"),
    h("div.cards", {}, overview.regions.map((region) => regionCard(region, overview.control))),
    h("h2", {}, "If a region died now", h("small", {}, "computed from what the other regions have acknowledged at this moment")),
    h("div.cards", {}, overview.if_lost.map((row) => lossCard(row, overview.drills.last))),
    h("h2", {}, "Last drills", h("small", {}, "a region, a link or a broker was lost on purpose: how long nobody was answered (RTO), and what was not kept (RPO)")),
    overview.drills.last.length ? h("div.cards", {}, overview.drills.last.map(drillCard)) : h("p.note", {}, overview.drills.why_none, "."),
  ];
}
