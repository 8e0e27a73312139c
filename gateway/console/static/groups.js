// Consumer groups of a region: lag in total and by partition with its history, members, offsets, deletion.

import { h, table, number, many, time, badge } from "./dom.js";
import { get, query, send } from "./api.js";
import { act, doer, field, notice, paged, tabs } from "./act.js";
import { History, line } from "./chart.js";

const PAGE = 100;
const history = new History();
const view = { text: "", from: 0 };
const partitions = { of: "", from: 0 };
const STATE = { Stable: "pass", Empty: "no_data", Dead: "breach" };

function list({ groups }, region, context) {
  const found = groups.filter((group) => group.group.includes(view.text));
  const shown = paged(found, view, context, PAGE);
  const rows = shown.rows.map((group) => [
    h("a", { href: `#/groups/${region}/${encodeURIComponent(group.group)}` }, group.group),
    badge(STATE[group.state] ?? "inconclusive", group.state), number(group.members),
    group.lag === null ? "open it to see" : number(group.lag),
    line(history.rows.get(`${region}/${group.group}`) ?? [], { label: `lag of ${group.group}` }),
    String(group.coordinator),
  ]);
  return [
    h("h1", {}, "Consumer groups"),
    tabs(context.regions, region, (name) => `#/groups/${name}`, "Region"),
    h("div.toolbar", {},
      field("Name contains", h("input", { type: "search", value: view.text, oninput: (event) => { view.text = event.target.value; view.from = 0; context.render(); } })),
      h("span.grow", {}, `${many(found.length, "group")} in ${region}`), shown.buttons),
    table(["group", "state", { title: "members", number: true }, { title: "lag, records", number: true }, "lag since this page is open", "coordinator"], rows, { empty: `no group in ${region}`, caption: "Consumer groups" }),
    h("p.note", {}, "A group belongs to one region. Its lag is the records that it has not committed yet, all partitions together."),
  ];
}

async function reset(event, group, region, context) {
  event.preventDefault();
  const form = new FormData(event.target);
  const body = { topic: form.get("topic"), to: form.get("to") };
  const path = query(`/v1/groups/${encodeURIComponent(group)}/reset-offsets`, { region });
  let plan;
  try { plan = await send("POST", path, body); } catch (error) { notice(error.message); return; }
  const explain = [h("p", {}, "These offsets would be set; the group must have no members."),
    table([{ title: "partition", number: true }, { title: "now", number: true }, { title: "then", number: true }], plan.partitions.map((row) => [number(row.partition), number(row.committed), number(row.new_offset)]), { caption: "The plan" })];
  if (await act({ title: `Set offsets of ${group}`, explain, method: "POST", path, body: { ...body, execute: true }, button: "Set" })) { notice("offsets are set"); context.reload(); }
}

function detail(group, region, context) {
  const of = `${region}/${group.group}`;
  if (partitions.of !== of) Object.assign(partitions, { of, from: 0 });
  const shown = paged(group.partitions, partitions, context, PAGE);
  const rows = shown.rows.map((row) => [
    row.topic, number(row.partition), number(row.committed), number(row.high_watermark), row.lag === null ? "?" : number(row.lag),
    line(history.rows.get(`${of}/${row.topic}/${row.partition}`) ?? [], { label: `lag of partition ${row.partition}` }),
    row.client_id ?? row.member_id ?? "", row.committed_ms ? time(row.committed_ms) : "",
  ]);
  const topics = [...new Set(group.partitions.map((row) => row.topic))];
  return [
    h("p.crumb", {}, h("a", { href: `#/groups/${region}` }, `Groups of ${region}`), " / "),
    h("h1", {}, group.group, " ", badge(STATE[group.state] ?? "inconclusive", group.state)),
    h("dl.facts", {}, h("dt", {}, "lag"), h("dd", {}, `${number(group.lag)} records`), h("dt", {}, "members"), h("dd", {}, number(group.members.length)),
      h("dt", {}, "generation"), h("dd", {}, number(group.generation)), h("dt", {}, "coordinator"), h("dd", {}, String(group.coordinator))),
    shown.buttons ? h("div.toolbar", {}, h("span.grow", {}, many(group.partitions.length, "partition")), shown.buttons) : null,
    table(["topic", { title: "partition", number: true }, { title: "committed", number: true }, { title: "end", number: true }, { title: "lag", number: true }, "lag since this page is open", "read by", "committed at (UTC)"], rows, { empty: "nothing committed", caption: "Partitions" }),
    group.members.length ? [h("h2", {}, "Members"), table(["client", "host", "member"], group.members.map((member) => [member.client_id ?? "", member.client_host ?? "", h("code", {}, member.member_id ?? "")]), { caption: "Members" })] : null,
    topics.length ? h("details.make", {}, h("summary", {}, "Set its offsets"), h("form.inline", { onsubmit: (event) => reset(event, group.group, region, context) },
      field("Topic", h("select", { name: "topic" }, topics.map((name) => h("option", {}, name)))),
      field("To", h("select", { name: "to" }, h("option", {}, "earliest"), h("option", {}, "latest"))),
      doer("Show the plan…", { type: "submit" }, "main"))) : null,
    h("div.buttons", {}, doer("Forget this group…", { onclick: async () => {
      if (await act({ title: `Forget group ${group.group}`, explain: h("p", {}, "Its offsets are gone; who comes back by that name begins anew."), method: "DELETE", path: query(`/v1/groups/${encodeURIComponent(group.group)}`, { region }), typed: group.group, button: "Forget", danger: true })) location.hash = `#/groups/${region}`;
    } }, "danger.outline")),
  ];
}

export const groupsPage = {
  path: "groups", title: "Groups", every: 5000,
  async load([region, name], context) {
    const at = region ?? context.regions[0];
    if (!name) {
      const found = await get(query("/v1/groups", { region: at }));
      for (const group of found.groups) if (group.lag !== null) history.add(`${at}/${group.group}`, group.lag);
      return found;
    }
    const group = await get(query(`/v1/groups/${encodeURIComponent(name)}`, { region: at }));
    for (const row of group.partitions) history.add(`${at}/${name}/${row.topic}/${row.partition}`, row.lag);
    return group;
  },
  show: (data, [region, name], context) => (name ? detail(data, region, context) : list(data, region ?? context.regions[0], context)),
};
