// Do all regions hold the same records? Their digest chains compared, and what was cut off by a failover.

import { h, table, number, time, badge, many } from "./dom.js";
import { get, query } from "./api.js";
import { act, doer, notice, tabs } from "./act.js";

const LIMIT = 20;
const STATE = { agrees: "pass", behind: "no_data", reference: "pass", silent: "no_data", unreachable: "no_data" };
const view = { after: [""], rows: null };

function streams(data, context) {
  const rows = data.streams.map((stream) => [
    h("span", {}, stream.name), number(stream.partition), stream.home, badge(STATE[stream.state] ?? "breach", stream.state), number(stream.compared),
    stream.regions.map((row) => `${row.region}: ${row.state === "reference" ? "compared with" : row.state}${row.behind ? `, ${number(row.behind)} behind` : ""}${row.reason ? ` (${row.reason})` : ""}`).join(" · "),
  ]);
  return [
    h("div.toolbar", {}, h("span.grow", {}, `${many(data.streams.length, "stream")} on this page`),
      h("button.plain", { type: "button", disabled: view.after.length < 2, onclick: () => { view.after.pop(); context.reload(); } }, "Previous"),
      h("button.plain", { type: "button", disabled: !data.next, onclick: () => { view.after.push(data.next); context.reload(); } }, "Next")),
    table(["stream", { title: "partition", number: true }, "home", "state", { title: "records compared", number: true }, "regions"], rows, { empty: "no streams", caption: "Audit" }),
  ];
}

function branches(list, region, context) {
  const place = (branch) => `/v1/orphans/${encodeURIComponent(branch.topic)}/${branch.partition}/${branch.epoch}`;
  return table(["topic", { title: "partition", number: true }, { title: "cut off by epoch", number: true }, { title: "first", number: true }, { title: "records", number: true }, "cut at (UTC)", ""],
    list.branches.map((branch) => [branch.topic, number(branch.partition), number(branch.epoch), number(branch.first), number(branch.records), time(branch.cut_ms), [
      h("a.button", { href: query(place(branch), { region, format: "json" }), download: `${branch.topic}-${branch.partition}-${branch.epoch}.json` }, "Export"), " ",
      doer("Publish again…", { onclick: async () => {
        const done = await act({ title: `Publish ${many(branch.records, "record")} again`, explain: h("p", {}, "As new records of the topic, at new offsets. Nobody knows whether somebody has done so before."), method: "POST", path: query(`${place(branch)}/republish`, { region }), body: { offset: branch.first }, typed: branch.topic, button: "Publish" });
        if (done) notice(`${many(done.published, "record")} published, ${number(done.left_out)} left out${done.next_offset <= branch.first + branch.records - 1 ? "; the rest is not done yet" : ""}`);
      } }), " ",
      doer("Drop…", { onclick: async () => {
        if (await act({ title: "Drop this branch", explain: h("p", {}, "It and older ones of the partition may be deleted: these records are then nowhere."), method: "DELETE", path: query(place(branch), { region }), typed: branch.topic, button: "Drop", danger: true })) context.reload();
      } }, "danger")]]), { empty: `${region} has none`, caption: "Orphan branches" });
}

export const auditPage = {
  path: "audit", title: "Audit",
  async load([region], context) {
    const at = region ?? context.regions[0];
    const [found, orphans] = await Promise.all([get(query("/v1/audit", { limit: LIMIT, after: view.after.at(-1) })), get(query("/v1/orphans", { region: at }))]);
    return { found, orphans };
  },
  show: ({ found, orphans }, [region], context) => {
    const at = region ?? context.regions[0];
    return [
      h("h1", {}, "Audit"),
      h("p.soft", {}, "Every region keeps a chain of digests over the records of each stream. Equal chains are equal records."),
      streams(found, context),
      h("h2", {}, "Orphan branches ", h("small", {}, "records that a region had committed and a failover cut off: kept until somebody decides")),
      tabs(context.regions, at, (name) => `#/audit/${name}`, "Region"),
      branches(orphans, at, context),
    ];
  },
};
