// Topics: a list by name with rates, and one topic with its partitions, homes and settings.

import { h, table, number, many, bytes, ms } from "./dom.js";
import { get, query } from "./api.js";
import { act, doer, field, notice, paged } from "./act.js";

const PAGE = 50;
const view = { text: "", from: 0, internal: false };
const partitions = { topic: "", from: 0 };

const kept = (value, shown) => (value === -1 ? "for ever" : shown(value));

function rates(overview) {
  return new Map((overview?.topics ?? []).map((topic) => [topic.name, topic]));
}

async function create(event, context) {
  event.preventDefault();
  const form = new FormData(event.target);
  const body = { name: form.get("name"), partitions: Number(form.get("partitions")), homes: form.get("homes") };
  if (form.get("home") && body.homes === "one") body.home = form.get("home");
  const made = await act({ title: `Create topic ${body.name}`, method: "POST", path: "/v1/topics", body, button: "Create" });
  if (made) { notice(`created topic ${made.name}`); location.hash = `#/topics/${encodeURIComponent(made.name)}`; }
}

function list(topics, context) {
  const known = rates(context.overview);
  const names = new Set(topics.map((topic) => topic.name));
  const isAlias = (topic) => topic.is_mirror_name || (topic.homes === "every" && names.has(topic.name.slice(topic.name.indexOf(".") + 1)) && topic.name.includes("."));
  const found = topics.filter((topic) => !isAlias(topic) && (view.internal || !topic.name.startsWith("__")) && topic.name.includes(view.text));
  const shown = paged(found, view, context, PAGE);
  const rows = shown.rows.map((topic) => {
    const rate = known.get(topic.name);
    return [
      h("a", { href: `#/topics/${encodeURIComponent(topic.name)}` }, topic.name),
      number(topic.partitions), number(topic.replication_factor),
      topic.homes === "every" ? "every region" : context.regionName(topic.home),
      rate ? number(rate.records) : "", rate ? number(rate.records_per_s) : "",
      kept(topic.retention_ms, ms),
      Object.entries(topic.settings).map(([name, value]) => `${name}=${value}`).join(" "),
    ];
  });
  return [
    h("h1", {}, "Topics"),
    h("div.toolbar", {},
      field("Name contains", h("input", { type: "search", value: view.text, oninput: (event) => { view.text = event.target.value; view.from = 0; context.render(); } })),
      h("label.check", {}, h("input", { type: "checkbox", checked: view.internal, onchange: (event) => { view.internal = event.target.checked; context.render(); } }), "also those of the brokers"),
      h("span.grow", {}, many(found.length, "topic")), shown.buttons),
    table(["name", { title: "partitions", number: true }, { title: "replicas", number: true }, "made with home", { title: "records kept", number: true }, { title: "records/s", number: true }, "retention", "settings that are not the default"], rows, { empty: "no topic has such a name", caption: "Topics" }),
    h("details.make", {}, h("summary", {}, "Create a topic"),
      h("form.inline", { onsubmit: (event) => create(event, context) },
        field("Name", h("input", { name: "name", required: true, autocomplete: "off", spellcheck: "false" })),
        field("Partitions", h("input", { name: "partitions", type: "number", min: "1", max: "1000", value: "3" })),
        field("Homes", h("select", { name: "homes" }, h("option", { value: "one" }, "one region orders"), h("option", { value: "every" }, "every region its own stream"))),
        field("Home", h("select", { name: "home" }, h("option", { value: "" }, "nearest"), context.regions.map((name) => h("option", { value: name }, name)))),
        doer("Create…", { type: "submit" }, "main"))),
  ];
}

function sizeOf(partitions) {
  const known = partitions.map((state) => state.size_bytes).filter((size) => size !== undefined);
  const sum = bytes(known.reduce((all, size) => all + size, 0));
  return known.length === 0 ? "not known to the broker that was asked" : `${sum} on one broker${known.length < partitions.length ? `, of ${many(known.length, "partition")}` : ""}`;
}

function detail({ topic, homes }, context) {
  const byPartition = new Map(homes.map((row) => [row.partition, row]));
  if (partitions.topic !== topic.name) Object.assign(partitions, { topic: topic.name, from: 0 });
  const shown = paged(topic.partition_states, partitions, context, PAGE);
  const rows = shown.rows.map((state) => {
    const home = byPartition.get(state.partition);
    const here = home?.home ?? context.regionName(state.home);
    const records = state.high_watermark === undefined ? null : state.high_watermark - state.log_start;
    return [
      number(state.partition), h("b", {}, topic.homes === "every" ? context.regionName(state.home) : here), number(state.epoch), state.leader < 0 ? "none" : String(state.leader),
      state.replicas.join(", "), number(state.log_start), number(state.high_watermark), number(records), bytes(state.size_bytes),
      home?.moving ? `moves to ${home.moving.target ?? "?"}` : state.is_settled ? "" : "replicas move",
      h("a", { href: `#/records/${encodeURIComponent(topic.name)}/${state.partition}` }, "records"),
    ];
  });
  const settings = Object.entries(topic.settings);
  // A region shows its own brokers: those of the one that this gateway has asked, not those of the home.
  const broker = topic.partition_states.flatMap((state) => [...state.replicas, state.leader]).find((id) => id > 0);
  const answering = broker === undefined ? "this region" : context.regionName(Math.floor(broker / 1000));
  return [
    h("p.crumb", {}, h("a", { href: "#/topics" }, "Topics"), " / "),
    h("h1", {}, topic.name),
    h("dl.facts", {},
      h("dt", {}, "homes"), h("dd", {}, topic.homes === "every" ? "every region orders its own stream" : "one region orders each partition"),
      h("dt", {}, "kept"), h("dd", {}, topic.retention_ms === -1 && topic.retention_bytes === -1 ? "for ever" : `${kept(topic.retention_ms, ms)}; per partition: ${kept(topic.retention_bytes, bytes)}`),
      h("dt", {}, "size"), h("dd", {}, sizeOf(topic.partition_states)),
      h("dt", {}, "settings"), h("dd", {}, settings.length ? settings.map(([name, value]) => h("code.block", {}, `${name}=${value}`)) : "all at their default"),
      h("dt", {}, "id"), h("dd", {}, h("code", {}, topic.topic_id))),
    shown.buttons ? h("div.toolbar", {}, h("span.grow", {}, many(topic.partition_states.length, "partition")), shown.buttons) : null,
    table([{ title: "partition", number: true }, "home", { title: "epoch", number: true }, `leader in ${answering}`, `replicas in ${answering}`, { title: "log start", number: true }, { title: "high watermark", number: true }, { title: "records", number: true }, { title: "size", number: true }, "", ""], rows, { caption: `Partitions of ${topic.name}` }),
    h("div.buttons", {},
      topic.homes === "one" ? h("a.button", { href: `#/homes?topic=${encodeURIComponent(topic.name)}` }, "Move its homes") : null,
      doer("Delete topic…", { onclick: async () => {
        const gone = await act({ title: `Delete topic ${topic.name}`, explain: h("p", {}, "Its records are deleted in every region, for ever."), method: "DELETE", path: `/v1/topics/${encodeURIComponent(topic.name)}`, typed: topic.name, button: "Delete", danger: true });
        if (gone) { notice(`deleted topic ${topic.name}`); location.hash = "#/topics"; }
      } }, "danger.outline")),
  ];
}

export const topicsPage = {
  path: "topics", title: "Topics", every: 5000,
  async load([name]) {
    if (!name) return (await get("/v1/topics")).topics;
    const topic = await get(`/v1/topics/${encodeURIComponent(name)}`);
    const homes = topic.homes === "one" ? (await get(query("/v1/homes", { topic: name }))).homes : [];
    return { topic, homes };
  },
  show: (data, [name], context) => (name ? detail(data, context) : list(data, context)),
};
