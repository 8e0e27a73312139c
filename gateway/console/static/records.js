// Records: browse one partition by offset, time or key, follow its end, publish one.

import { h, table, number, time, many } from "./dom.js";
import { get, query, curl } from "./api.js";
import { act, doer, field, notice } from "./act.js";

const PAGE = 50, SCANNED_MAX = 20_000, TAIL_WAIT_MS = 15_000, SHOWN_MAX = 500;
let view = null;
let tail = null;

const pathOf = (topic) => `/v1/topics/${encodeURIComponent(topic)}/records`;
const read = (topic, partition, offset, max = PAGE, more = {}, signal) => get(query(pathOf(topic), { partition, offset, max, ...more }), signal);

// The first record at or after a moment: offsets rise with time of append, so halving finds it.
async function offsetAt(topic, partition, at_ms) {
  const ends = await read(topic, partition, "latest", 1);
  let low = ends.log_start, high = ends.high_watermark;
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    const [record] = (await read(topic, partition, middle, 1)).records;
    if (record && record.timestamp_ms < at_ms) low = record.offset + 1;
    else high = middle;
  }
  return low;
}

async function scan(topic, partition, key) {
  const found = [];
  let offset = "earliest", seen = 0, answer;
  do {
    answer = await read(topic, partition, offset, 1000);
    found.push(...answer.records.filter((record) => (record.key ?? atob(record.key_b64 ?? "")) === key));
    seen += answer.records.length;
    offset = answer.next_offset;
  } while (answer.records.length && seen < SCANNED_MAX && found.length < SHOWN_MAX && offset < answer.high_watermark);
  return { ...answer, records: found, scanned: seen };
}

function stopTail() {
  tail?.abort();
  tail = null;
}

async function follow(context) {
  const mine = (tail = new AbortController());
  let offset = "latest";
  view.answer.records = [];
  context.render();
  while (tail === mine) {
    try {
      const answer = await read(view.topic, view.partition, offset, 500, { wait_ms: TAIL_WAIT_MS }, mine.signal);
      if (tail !== mine) return;
      offset = answer.next_offset;
      view.answer = { ...answer, records: [...answer.records.reverse(), ...view.answer.records].slice(0, SHOWN_MAX) };
      context.render();
    } catch (error) {
      if (error.name === "AbortError" || tail !== mine) return;
      view.note = error.message;
      stopTail();
      context.render();
    }
  }
}

async function find(event, context) {
  event.preventDefault();
  stopTail();
  const form = new FormData(event.target);
  Object.assign(view, { topic: form.get("topic"), partition: form.get("partition"), by: form.get("by"), what: form.get("what") ?? "" });
  view.note = "";
  try {
    if (view.by === "end") {
      view.answer = { records: [], log_start: null, high_watermark: null };
      follow(context);
      return;
    }
    if (view.by === "key") view.answer = await scan(view.topic, view.partition, view.what);
    else {
      let offset = view.by;
      if (view.by === "offset") offset = view.what || "0";
      if (view.by === "time") offset = await offsetAt(view.topic, view.partition, new Date(view.what.includes("Z") ? view.what : `${view.what}Z`).getTime());
      if (view.by === "newest") {
        const ends = await read(view.topic, view.partition, "latest", 1);
        offset = Math.max(ends.log_start, ends.high_watermark - PAGE);
      }
      view.answer = await read(view.topic, view.partition, offset);
    }
  } catch (error) {
    view.note = error.message;
    view.answer = null;
  }
  context.render();
}

async function turn(context, offset) {
  view.answer = await read(view.topic, view.partition, Math.max(view.answer.log_start, offset));
  context.render();
}

async function publish(event, context) {
  event.preventDefault();
  const form = new FormData(event.target);
  const record = { value: form.get("value") };
  if (form.get("key")) record.key = form.get("key");
  if (form.get("to") !== "") record.partition = Number(form.get("to"));
  const answer = await act({ title: `Publish a record to ${view.topic}`, explain: h("p", {}, "It is stored when a majority of the brokers of its home has it on disk."), method: "POST", path: pathOf(view.topic), body: [record], button: "Publish" });
  if (answer) {
    const [stored] = answer.records;
    notice(`stored at partition ${stored.partition}, offset ${number(stored.offset)}, epoch ${stored.epoch}`);
  }
  context.render();
}

const text = (record, name) => (record[name] !== undefined ? record[name] ?? "null" : `base64 ${record[`${name}_b64`]}`);

function shown(answer, context) {
  const { records } = answer;
  const rows = records.map((record) => [
    number(record.offset), time(record.timestamp_ms), h("code", {}, text(record, "key")),
    h("code.value", {}, String(text(record, "value")).slice(0, 2000)),
    Object.entries({ ...record.headers, ...record.headers_b64 }).map(([name, value]) => h("code.block", {}, `${name}: ${value}`)),
  ]);
  const command = curl("GET", query(pathOf(view.topic), { partition: view.partition, offset: records[0]?.offset ?? "earliest", max: PAGE }));
  return [
    h("div.toolbar", {},
      h("span.grow", {}, answer.scanned !== undefined ? `${many(records.length, "record")} with that key among the first ${number(answer.scanned)}`
        : tail ? [h("b.pulse", {}, "● "), `following the end; ${many(records.length, "record")} so far, the newest first`]
        : `offsets ${number(answer.log_start)} to ${number(answer.high_watermark)} are kept`),
      tail ? h("button.plain", { type: "button", onclick: () => { stopTail(); context.render(); } }, "Stop") : null,
      tail || answer.scanned !== undefined ? null : [
        h("button.plain", { type: "button", disabled: !records.length || records[0].offset <= answer.log_start, onclick: () => turn(context, records[0].offset - PAGE) }, "Older"),
        h("button.plain", { type: "button", disabled: answer.next_offset >= answer.high_watermark, onclick: () => turn(context, answer.next_offset) }, "Newer")]),
    table([{ title: "offset", number: true }, "time (UTC)", "key", "value", "headers"], rows, { empty: tail ? "waiting for records" : "no records here", caption: "Records" }),
    h("details.curl", {}, h("summary", {}, "The same as a command"), h("pre", {}, command)),
  ];
}

function page(topics, context) {
  const topic = topics.find((one) => one.name === view.topic);
  const needs = { offset: "Offset", time: "Time (UTC)", key: "Key" }[view.by];
  return [
    h("h1", {}, "Records"),
    h("form.inline", { onsubmit: (event) => find(event, context) },
      field("Topic", h("select", { name: "topic", onchange: (event) => { stopTail(); location.hash = `#/records/${encodeURIComponent(event.target.value)}/0`; } },
        topics.map((one) => h("option", { value: one.name, selected: one.name === view.topic }, one.name)))),
      field("Partition", h("select", { name: "partition" }, Array.from({ length: topic?.partitions ?? 1 }, (_, number) => h("option", { value: number, selected: String(number) === String(view.partition) }, number)))),
      field("From", h("select", { name: "by", onchange: (event) => { view.by = event.target.value; context.render(); } },
        [["newest", "the newest"], ["earliest", "the oldest"], ["offset", "an offset"], ["time", "a time"], ["key", "only a key"], ["end", "the end, live"]].map(([value, title]) => h("option", { value, selected: value === view.by }, title)))),
      needs ? field(needs, h("input", { "data-key": view.by, name: "what", type: view.by === "time" ? "datetime-local" : view.by === "offset" ? "number" : "text", step: view.by === "time" ? "1" : undefined, required: true, value: view.what })) : null,
      h("button", { type: "submit" }, "Show")),
    view.note ? h("p.error", { role: "alert" }, view.note) : null,
    view.answer ? shown(view.answer, context) : null,
    view.topic ? h("details.make", {}, h("summary", {}, "Publish a record"),
      h("form.inline", { onsubmit: (event) => publish(event, context) },
        field("Key", h("input", { name: "key", autocomplete: "off" })),
        field("Value", h("input", { name: "value", autocomplete: "off", size: "40" })),
        field("Partition", h("input", { name: "to", type: "number", min: "0", max: (topic?.partitions ?? 1) - 1, placeholder: "by key" })),
        doer("Publish…", { type: "submit" }, "main"))) : null,
  ];
}

export const recordsPage = {
  path: "records", title: "Records",
  async load([name, partition = "0"]) {
    const topics = (await get("/v1/topics")).topics.filter((topic) => !topic.name.startsWith("__") && !topic.name.includes(".__"));
    const topic = name ?? topics[0]?.name ?? "";
    if (view?.topic !== topic || String(view.partition) !== partition) {
      stopTail();
      view = { topic, partition, by: "newest", what: "", note: "", answer: null };
      if (topic) {
        try {
          const ends = await read(topic, partition, "latest", 1);
          view.answer = await read(topic, partition, Math.max(ends.log_start, ends.high_watermark - PAGE));
        } catch (error) { view.note = error.message; }
      }
    }
    return topics;
  },
  show: (topics, _route, context) => page(topics, context),
  left: stopTail,
};
