// Work queues of a region: what waits, who works, dead letters, and sending those back.

import { h, table, number, ms, many, time } from "./dom.js";
import { get, query } from "./api.js";
import { act, doer, notice, tabs } from "./act.js";

const LETTERS = 50;

function list({ queues }, region, context) {
  return [
    h("h1", {}, "Queues"),
    tabs(context.regions, region, (name) => `#/queues/${name}`, "Region"),
    table(["queue", "topic", { title: "ready", number: true }, { title: "delayed", number: true }, { title: "leased", number: true }, { title: "dead lettering", number: true }, "coordinator"],
      queues.map((queue) => [h("a", { href: `#/queues/${region}/${encodeURIComponent(queue.name)}` }, queue.name), queue.topic, number(queue.ready), number(queue.delayed), number(queue.leased), number(queue.dead_lettering), String(queue.coordinator)]),
      { empty: `no queue in ${region}`, caption: "Queues" }),
    h("p.note", {}, "In a queue each record is leased to one consumer at a time until it is done. A queue belongs to one region."),
  ];
}

// Without what the queue wrote on it when it gave it up.
function original(letter) {
  const record = {};
  for (const name of ["key", "key_b64", "value", "value_b64"]) if (letter[name] !== undefined) record[name] = letter[name];
  const own = (headers) => Object.fromEntries(Object.entries(headers ?? {}).filter(([name]) => !name.startsWith("georelay-")));
  record.headers = own(letter.headers);
  if (letter.headers_b64) record.headers_b64 = own(letter.headers_b64);
  return record;
}

async function redrive(queue, letters, context) {
  const answer = await act({
    title: `Send ${many(letters.length, "dead letter")} back`,
    explain: h("p", {}, `As new records of ${queue.topic}, with the keys, values and headers they had. The dead letters stay where they are until retention or a person deletes them.`),
    method: "POST", path: `/v1/topics/${encodeURIComponent(queue.topic)}/records`, body: letters.map(original), button: "Send back",
  });
  if (answer) { notice(`${many(answer.records.length, "record")} sent back`); context.reload(); }
}

function detail({ queue, letters, kept }, region, context) {
  const rows = letters.map((letter) => [
    time(letter.timestamp_ms), letter.headers?.["georelay-reason"] ?? "", `${letter.headers?.["georelay-partition"] ?? "?"} / ${letter.headers?.["georelay-offset"] ?? "?"}`,
    letter.headers?.["georelay-deliveries"] ?? "", h("code", {}, letter.key ?? ""), h("code.value", {}, String(letter.value ?? letter.value_b64 ?? "").slice(0, 500)),
    doer("Send back…", { onclick: () => redrive(queue, [letter], context) }),
  ]);
  return [
    h("p.crumb", {}, h("a", { href: `#/queues/${region}` }, `Queues of ${region}`), " / "),
    h("h1", {}, queue.name),
    h("div.cards", {},
      h("article.card", {}, h("h2", {}, "Now"), h("dl", {}, ["ready", "delayed", "leased", "dead_lettering"].map((name) => [h("dt", {}, name.replace("_", " ")), h("dd", {}, number(queue[name]))]), h("dt", {}, "oldest"), h("dd", {}, queue.oldest_age_ms ? ms(queue.oldest_age_ms) : "none"))),
      h("article.card", {}, h("h2", {}, "So far"), h("dl", {}, ["acknowledged", "redelivered", "dead_lettered", "expired", "purged", "skipped"].map((name) => [h("dt", {}, name.replace("_", " ")), h("dd", {}, number(queue[name]))]))),
      h("article.card", {}, h("h2", {}, "Rules"), h("dl", {}, h("dt", {}, "topic"), h("dd", {}, queue.topic), h("dt", {}, "lease"), h("dd", {}, ms(queue.visibility_timeout_ms)), h("dt", {}, "deliveries at most"), h("dd", {}, queue.max_deliveries || "no limit"), h("dt", {}, "order"), h("dd", {}, queue.order), h("dt", {}, "dispatch"), h("dd", {}, queue.dispatch.replace("_", " "))))),
    h("h2", {}, "Consumers"),
    table(["consumer", { title: "leases", number: true }], queue.consumers.map((one) => [one.consumer, number(one.leases)]), { empty: "nobody works on it", caption: "Consumers" }),
    h("h2", {}, "Dead letters ", h("small", {}, queue.dead_letter_topic ? `records that were given up, in ${queue.dead_letter_topic}; ${many(kept, "record")} kept` : "this queue has no dead-letter topic")),
    table(["given up (UTC)", "why", "partition / offset", { title: "deliveries", number: true }, "key", "value", ""], rows, { empty: "none", caption: "Dead letters" }),
    h("div.buttons", {},
      letters.length > 1 ? doer(`Send all ${letters.length} shown back…`, { onclick: () => redrive(queue, letters, context) }) : null,
      doer("Purge…", { onclick: async () => {
        const done = await act({ title: `Purge ${queue.name}`, explain: h("p", {}, "Everything that is stored counts as done. Records stay in the topic."), method: "POST", path: query(`/v1/queues/${encodeURIComponent(queue.name)}/purge`, { region }), typed: queue.name, button: "Purge", danger: true });
        if (done) { notice(`${many(done.purged, "record")} purged`); context.reload(); }
      } }, "danger.outline")),
  ];
}

async function lettersOf(queue) {
  if (!queue.dead_letter_topic) return { letters: [], kept: 0 };
  let topic;
  try { topic = await get(`/v1/topics/${encodeURIComponent(queue.dead_letter_topic)}`); } catch (error) {
    if (error.status === 404 || error.status === 403) return { letters: [], kept: 0 };
    throw error;
  }
  const letters = [];
  let kept = 0;
  for (const { partition, log_start, high_watermark } of topic.partition_states.slice(0, 16)) {
    if (high_watermark === undefined || high_watermark <= log_start) continue;
    kept += high_watermark - log_start;
    const answer = await get(query(`/v1/topics/${encodeURIComponent(queue.dead_letter_topic)}/records`, { partition, offset: Math.max(log_start, high_watermark - LETTERS), max: LETTERS }));
    letters.push(...answer.records);
  }
  letters.sort((one, other) => other.timestamp_ms - one.timestamp_ms);
  return { letters: letters.slice(0, LETTERS), kept };
}

export const queuesPage = {
  path: "queues", title: "Queues", every: 5000,
  async load([region, name], context) {
    const at = region ?? context.regions[0];
    if (!name) return get(query("/v1/queues", { region: at }));
    const queue = await get(query(`/v1/queues/${encodeURIComponent(name)}`, { region: at }));
    return { queue, ...(await lettersOf(queue)) };
  },
  show: (data, [region, name], context) => (name ? detail(data, region, context) : list(data, region ?? context.regions[0], context)),
};
