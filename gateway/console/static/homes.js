// Homes: which region orders what, planned moves, failover of a region that is gone, and how far a move is.

import { h, table, number, ms, many, badge } from "./dom.js";
import { get, query } from "./api.js";
import { act, doer, field, paged } from "./act.js";

const PAGE = 100, FOLLOW_MS = 500;
const view = { topic: null, from: 0, move: null, report: null };
let following = 0;

async function follow(context) {
  const move = view.move;
  const mine = ++following;
  while (view.move === move && mine === following && location.hash.startsWith("#/homes")) {
    try {
      view.report = await get(`/v1/homes/moves/${move}`);
    } catch (error) { view.report = { error: error.message, over: false, stages: {}, moved_count: 0, refused_count: 0, refused: [], waiting: [] }; }
    context.render();
    if (view.report.over) { context.reload(); return; }
    await new Promise((resolve) => setTimeout(resolve, FOLLOW_MS));
  }
}

function began(answer, context) {
  if (!answer) return;
  view.move = answer.move_id;
  view.report = null;
  follow(context);
}

function report() {
  if (!view.move) return null;
  const found = view.report;
  if (!found) return h("div.banner.no_data", { role: "status" }, h("strong", {}, "Moving"), h("span", {}, view.move));
  const bad = found.refused_count > 0;
  const state = !found.over ? "inconclusive" : bad ? "breach" : "pass";
  const title = !found.over ? "Moving" : bad ? "Not all moved" : "Moved";
  return [
    h(`div.banner.${state}`, { role: "status" }, h("strong", {}, title),
      h("span", {}, `${number(found.moved_count)} of ${number(found.streams ?? 0)} moved${bad ? `, ${number(found.refused_count)} refused` : ""}`),
      h("small", {}, found.over ? "" : `${Object.entries(found.stages).map(([stage, count]) => `${count} ${stage}`).join(", ")} ${found.error ?? ""}`)),
    found.refused.length || found.waiting.length ? h("ul.alarms", {}, [...found.refused, ...found.waiting].slice(0, 10).map((row) => h("li.warning", {}, h("b", {}, `${row.topic}/${row.partition}`), h("span.advice", {}, row.text)))) : null,
  ];
}

function lossOf(region, context) {
  const row = context.overview?.if_lost.find((one) => one.region === region);
  if (!row || !row.known) return h("p.error", {}, `What only ${region} has is not known: it never answered this gateway.`);
  const age = row.age_ms > 3000 ? ` It was last heard ${ms(row.age_ms)} ago; what it took since is not counted.` : "";
  return [
    h("p", { class: row.records ? "error" : undefined }, row.records ? `${many(row.records, "record")} of ${many(row.records_streams, "stream")} that only ${region} has (the oldest ${ms(row.records_ms)} old) would be cut off: kept aside as an orphan branch if it comes back, lost if it does not.${age}` : `Every record of ${region} is in another region: none would be lost.${age}`),
    h("p", {}, `${many(row.manual + row.automatic, "home")} would go to ${row.heir || "the region with the longest log"}. If ${region} still runs, cut off from here, it stops taking records only when it hears of this.`),
  ];
}

async function failover(event, context) {
  event.preventDefault();
  const form = new FormData(event.target);
  const region = form.get("region");
  const body = { region, ...(form.get("accept_loss") === "on" ? { accept_loss: true } : {}) };
  began(await act({ title: `Take the homes away from ${region}`, explain: lossOf(region, context), method: "POST", path: "/v1/homes/failover", body, typed: region, button: "Take them away", danger: true }), context);
}

async function move(event, context) {
  event.preventDefault();
  const form = new FormData(event.target);
  const what = form.get("what"), to = form.get("to");
  const body = what.startsWith("region:") ? { to, from: what.slice(7) } : what.startsWith("groups:") ? { to, groups_of: what.slice(7) } : { to, topic: what.slice(6) };
  began(await act({ title: `Move homes to ${to}`, explain: h("p", {}, "The old home stops taking records, everything it has goes to the new one, then that one begins. Nothing is lost; publishers wait for a moment."), method: "POST", path: "/v1/homes/move", body, button: "Move" }), context);
}

function counts(homes, context) {
  const of = (region) => homes.filter((row) => row.home === region && !row.topic.includes("__georelay"));
  return h("div.cards", {}, context.regions.map((region) => {
    // The number of the overview: it has the streams of topics with homes=every too, which are listed nowhere below.
    const movable = of(region).length;
    const all = Math.max(movable, context.overview?.regions.find((one) => one.name === region)?.homes ?? 0);
    return h("article.card", { "data-key": region }, h("h2", {}, region),
      h("p.answer", {}, many(all, "home")),
      h("p.soft", {}, `${many(movable, "partition")} of ${many(new Set(of(region).map((row) => row.topic)).size, "topic")} can move`, all > movable ? `; ${number(all - movable)} of topics that every region is home of: these stay` : ""));
  }));
}

function page({ homes, is_all }, context) {
  const asked = new URLSearchParams(location.hash.split("?")[1] ?? "").get("topic");
  if (asked !== view.topic) { view.topic = asked; view.from = 0; }
  const found = homes.filter((row) => !view.topic || row.topic === view.topic);
  const topics = [...new Set(homes.filter((row) => !row.topic.includes("__georelay")).map((row) => row.topic))];
  const options = [
    ...topics.map((name) => ({ value: `topic:${name}`, title: `topic ${name}`, selected: name === view.topic })),
    ...context.regions.map((name) => ({ value: `region:${name}`, title: `every home of ${name}` })),
    ...context.regions.map((name) => ({ value: `groups:${name}`, title: `groups and queues that began in ${name}` })),
  ];
  const shown = paged(found, view, context, PAGE);
  const rows = shown.rows.map((row) => [
    h("a", { href: `#/topics/${encodeURIComponent(row.topic)}` }, row.topic), number(row.partition), h("b", {}, row.home), number(row.epoch), number(row.start),
    row.failover ? (row.failover.in_force ? "by itself" : row.failover.in_force === null ? "by itself (not known to be in force)" : "by itself, not in force yet") : "by a person",
    row.moving ? [badge("inconclusive", row.moving.kind), ` to ${row.moving.target ?? "?"}`, row.moving.waits?.fault ? h("small", {}, row.moving.waits.fault) : null] : row.accept_loss ? badge("breach", "with loss") : "",
  ]);
  return [
    h("h1", {}, "Homes"),
    h("p.soft", {}, "The home of a partition is the region that orders its records. It can move; the history of a partition stays one line."),
    report(),
    counts(homes, context),
    h("div.first", {},
      h("section.panel", {}, h("h2", {}, "Move by plan", h("small", {}, "both regions work; nothing is lost")),
        h("form.inline", { onsubmit: (event) => move(event, context) },
          field("What", h("select", { name: "what" }, options.map(({ value, title, selected }) => h("option", { value, selected }, title)))),
          field("To", h("select", { name: "to" }, context.regions.map((name) => h("option", {}, name)))),
          doer("Move…", { type: "submit" }, "main"))),
      h("section.panel", {}, h("h2", {}, "Failover", h("small", {}, "a region is gone: its homes go to others, and what only it has is cut off")),
        h("form.inline", { onsubmit: (event) => failover(event, context) },
          field("Region that is gone", h("select", { name: "region" }, context.regions.map((name) => h("option", {}, name)))),
          h("label.check", {}, h("input", { type: "checkbox", name: "accept_loss" }), "even records that several regions acknowledged"),
          doer("Take its homes away…", { type: "submit" }, "danger")))),
    h("h2", {}, view.topic ? [`Homes of ${view.topic} `, h("a", { href: "#/homes" }, "show all")] : "All homes"),
    is_all ? null : h("p.note", {}, "The first 10,000."),
    h("div.toolbar", {}, h("span.grow", {}, many(found.length, "partition")), shown.buttons),
    table(["topic", { title: "partition", number: true }, "home", { title: "epoch", number: true }, { title: "since offset", number: true }, "fails over", ""], rows, { empty: "no topic has one home", caption: "Homes" }),
  ];
}

export const homesPage = {
  path: "homes", title: "Homes", every: 3000,
  load: () => get("/v1/homes"),
  show: (data, _route, context) => page(data, context),
};
