// Brokers of each region with their disks, the links between regions, and the pool of members.

import { h, table, number, ms, badge, bytes } from "./dom.js";
import { get, query } from "./api.js";
import { act, doer, notice, tabs } from "./act.js";

const STATE = { active: "pass", draining: "inconclusive", drained: "no_data", absent: "breach" };

function verbs(broker, region, context) {
  const path = query(`/v1/brokers/${broker.id}`, { region });
  const done = async (options) => { if (await act(options)) { notice(`broker ${broker.id}: ordered`); context.reload(); } };
  if (broker.state === "active") return doer("Drain…", { onclick: () => done({ title: `Drain broker ${broker.id}`, explain: h("p", {}, "Its replicas move to the other brokers of the region. Nothing is lost; it may take a while."), method: "POST", path: query(`/v1/brokers/${broker.id}/drain`, { region }), typed: String(broker.id), button: "Drain" }) });
  if (broker.state === "draining" || broker.state === "drained") {
    return [doer("Use again…", { onclick: () => done({ title: `Use broker ${broker.id} again`, method: "POST", path, body: {}, button: "Use" }) }), " ",
      broker.state === "drained" ? doer("Remove…", { onclick: () => done({ title: `Remove broker ${broker.id}`, explain: h("p", {}, "It comes back only as a new one, with an empty disk."), method: "DELETE", path, typed: String(broker.id), button: "Remove", danger: true }) }, "danger") : null];
  }
  return null;
}

function brokers(data, region, context) {
  const seen = new Map((context.overview?.regions ?? []).flatMap((one) => one.brokers.map((broker) => [broker.id, broker])));
  return table(["broker", "state", { title: "round trip", number: true }, { title: "replicas", number: true }, { title: "leads", number: true }, { title: "moving", number: true }, "disk", "Kafka", "admin", ""],
    data.brokers.map((broker) => {
      const look = seen.get(broker.id);
      const disk = look?.disk_free_bytes ?? null;
      return [
        [h("b", {}, broker.id), look?.is_controller ? h("small", {}, "controller") : null],
        [badge(broker.alive ? STATE[broker.state] ?? "inconclusive" : "breach", broker.alive ? broker.state : "not heard"), broker.detail ? h("small", {}, broker.detail) : null, look?.error ? h("small", {}, look.error) : null],
        look?.rtt_ms === null || look?.rtt_ms === undefined ? "?" : ms(look.rtt_ms), number(broker.replicas), number(broker.leaders), number(broker.moving),
        disk === null ? "?" : [look.disk_writable ? null : h("b.bad", {}, "full: takes no records; "), `${bytes(disk)} free`],
        broker.kafka, broker.admin, verbs(broker, region, context)];
    }), { caption: `Brokers of ${region}` });
}

function links(context) {
  return table(["from", "to", "state", "cause", { title: "records behind", number: true }, { title: "behind", number: true }, { title: "round trip", number: true }, { title: "floor", number: true }, { title: "streams", number: true }],
    (context.overview?.pairs ?? []).map((pair) => [pair.origin, pair.dest, badge({ ok: "pass", passing: "inconclusive", behind: "inconclusive", none: "no_data", silent: "no_data" }[pair.state] ?? "breach", pair.words), pair.cause,
      number(pair.lag_records), ms(pair.lag_ms), ms(pair.rtt_ms), ms(pair.floor_ms), number(pair.streams)]), { caption: "Links" });
}

function members(pool) {
  return table(["member", "status", "region", "role", { title: "round trip (estimate)", number: true }, "address"],
    pool.members.map((member) => [member.name, badge(member.status === "alive" ? "pass" : "breach", member.status), member.tags.rg ?? "", member.tags.role ?? "", ms(member.rtt_ms), member.address]), { caption: "Members" });
}

function clocks(data) {
  const rows = data.clocks.filter((row) => row.broker !== null);
  return table(["region", "broker", { title: "clock is ahead by", number: true }, { title: "surely within", number: true }, { title: "round trip", number: true }, { title: "times it was set", number: true }],
    rows.map((row) => [row.region, String(row.broker), ms(row.offset_us / 1000), row.error_us === null ? "unknown" : `± ${ms(row.error_us / 1000)}`, row.rtt_us === null ? "?" : ms(row.rtt_us / 1000), number(row.steps)]), { caption: "Clocks" });
}

export const brokersPage = {
  path: "brokers", title: "Brokers", every: 5000,
  async load([region], context) {
    const at = region ?? context.regions[0];
    const [list, pool, clock] = await Promise.all([
      get(query("/v1/brokers", { region: at })),
      get(query("/v1/gossip/members", { region: at, pool: "wan" })).catch((error) => ({ members: [], error: error.message })),
      get(query("/v1/clocks", { region: at })).catch(() => ({ clocks: [] })),
    ]);
    return { list, pool, clock };
  },
  show: ({ list, pool, clock }, [region], context) => {
    const at = region ?? context.regions[0];
    return [
      h("h1", {}, "Brokers"),
      tabs(context.regions, at, (name) => `#/brokers/${name}`, "Region"),
      brokers(list, at, context),
      h("h2", {}, "Links between regions"), links(context),
      h("h2", {}, `Clocks, as ${at} measures them`), clocks(clock),
      h("h2", {}, `Members of the mesh's pool, as ${at} knows them`), pool.error ? h("p.soft", {}, pool.error) : members(pool),
    ];
  },
};
