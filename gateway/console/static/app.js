// The frame: who is signed in, which page is shown, and each new overview (one per second) while the page is visible.

import { h, fill } from "./dom.js";
import { get, me, whoAmI, signOut } from "./api.js";
import { signInPage } from "./signin.js";
import { overviewPage } from "./overview.js";
import { topicsPage } from "./topics.js";
import { recordsPage } from "./records.js";
import { groupsPage } from "./groups.js";
import { queuesPage } from "./queues.js";
import { brokersPage } from "./brokers.js";
import { homesPage } from "./homes.js";
import { securityPage } from "./security.js";
import { auditPage } from "./audit.js";
import { auditLogPage } from "./auditlog.js";
import { clientsPage } from "./clients.js";
import { referencePage } from "./reference.js";

const LOOK_MS = 100, AGAIN_MS = 1000;
const VIEWER_MS = 1000; // for each who looks: pages of all of them together ask about once in that time
const PAGES = [
  { path: "", title: "Overview", show: (_data, _route, context) => overviewPage(context.overview) },
  topicsPage, recordsPage, groupsPage, queuesPage, brokersPage, homesPage, clientsPage, securityPage, auditLogPage, auditPage, referencePage,
];

const app = document.getElementById("app");
const state = { overview: null, error: "", signingIn: false };
const shown = { key: "", data: null, error: "", at: 0, loading: null };
let timer = 0, looking = false;

const parts = () => location.hash.replace(/^#\/?/, "").split("?")[0].split("/").map(decodeURIComponent);
const current = () => PAGES.find((page) => page.path === parts()[0]) ?? PAGES[0];
const route = () => parts().slice(1).filter(Boolean);

const context = {
  get overview() { return state.overview; },
  get regions() { return (state.overview?.regions ?? []).map((region) => region.name); },
  regionName: (number) => state.overview?.regions.find((region) => region.number === number)?.name ?? `region ${number}`,
  render,
  reload: () => load(true),
};

function header() {
  const user = me.user?.replace(/^User:/, "");
  return h("header", {},
    h("a.brand", { href: "#/" }, "georelay", state.overview ? h("small", {}, `mesh ${state.overview.mesh.slice(0, 8)}`) : null),
    h("nav", { "aria-label": "Pages" }, state.signingIn ? null : PAGES.map((page) =>
      h("a", { href: `#/${page.path}`, "aria-current": page === current() ? "page" : undefined }, page.title))),
    h("div.who", {},
      me.read_only ? h("span.badge.inconclusive", {}, "read-only") : null,
      me.sign_in_required && user ? h("span", {}, user) : null,
      me.sign_in_required && user ? h("button.plain", { type: "button", onclick: leave }, "Sign out") : null,
      h("button.plain", { type: "button", onclick: turnLight, "aria-label": "Light or dark" }, "◐")));
}

function content() {
  if (state.signingIn) return signInPage(entered);
  const page = current();
  const stale = state.error ? h("p.banner.breach", { role: "alert" }, h("strong", {}, "Not current"), h("span", {}, state.error)) : null;
  if (page.load === undefined || state.overview === null) {
    if (state.overview === null) return state.error ? stale : h("p.soft", { role: "status" }, "Asking the brokers…");
    return [stale, page.show(null, [], context)];
  }
  if (shown.key !== location.hash) return h("p.soft", { role: "status" }, "Loading…");
  const failed = shown.error ? h("p.banner.breach", { role: "alert" }, h("strong", {}, "No answer"), h("span", {}, shown.error)) : null;
  return [stale, failed, shown.data === null ? (failed ? null : h("p.soft", { role: "status" }, "Loading…")) : page.show(shown.data, route(), context)];
}

function render() {
  document.title = `${state.overview?.verdict === "alarm" ? "✕ " : ""}${current().title} · georelay`;
  fill(app, header(), h("main", { id: "main", tabindex: "-1", "data-page": state.signingIn ? "sign-in" : location.hash.split("?")[0] }, h("div", { "data-key": state.signingIn ? "sign-in" : location.hash }, content())));
}

// Load the page's own data; one request at a time, the newest page wins.
async function load(again = false) {
  const page = current(), key = location.hash;
  if (state.signingIn || state.overview === null || page.load === undefined) return;
  if (shown.loading === key && !again) return;
  shown.loading = key;
  try {
    const data = await page.load(route(), context);
    if (location.hash !== key) return;
    Object.assign(shown, { key, data, error: "", at: Date.now() });
  } catch (error) {
    if (location.hash !== key || error.name === "AbortError") return;
    if (error.status === 401) state.signingIn = true;
    const kept = shown.key === key ? shown.data : null;
    Object.assign(shown, { key, data: kept, error: error.message, at: Date.now() });
  } finally {
    if (shown.loading === key) shown.loading = null;
  }
  render();
}

async function look() {
  clearTimeout(timer);
  if (looking || state.signingIn || document.hidden) return;
  looking = true;
  try {
    state.overview = await get(`/v1/overview?after=${state.overview?.version ?? 0}`);
    state.error = "";
  } catch (error) {
    if (error.name === "AbortError") return;
    if (error.status === 401) state.signingIn = true;
    state.error = error.message;
  } finally {
    looking = false;
  }
  const page = current();
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement?.nodeName);
  if (shown.key !== location.hash || (page.every && !typing && Date.now() - shown.at >= Math.max(page.every, VIEWER_MS * (state.overview?.viewers ?? 1)))) load();
  render();
  timer = setTimeout(look, state.error ? AGAIN_MS : LOOK_MS);
}

async function entered() {
  state.signingIn = false;
  render();
  await look();
}

// Nothing is asked from the click on: it would be refused, and what was asked before may come too late.
async function leave() {
  state.signingIn = true;
  try {
    await signOut();
    state.overview = null;
    Object.assign(shown, { key: "", data: null });
  } catch (error) {
    state.signingIn = false;
    state.error = error.message;
    timer = setTimeout(look, AGAIN_MS);
  }
  render();
}

function turnLight() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.light ?? (dark ? "dark" : "light");
  document.documentElement.dataset.light = localStorage.light = now === "dark" ? "light" : "dark";
}

let before = null;
function turned() {
  const page = current();
  if (before && before !== page) before.left?.();
  before = page;
  render();
  load();
  document.getElementById("main").focus({ preventScroll: true });
  scrollTo(0, 0);
}

async function start() {
  if (localStorage.light) document.documentElement.dataset.light = localStorage.light;
  addEventListener("hashchange", turned);
  document.addEventListener("visibilitychange", look);
  before = current();
  render();
  await whoAmI();
  state.signingIn = me.sign_in_required && me.user === null;
  render();
  await look();
}

start().catch((error) => { state.error = error.message; render(); timer = setTimeout(() => location.reload(), 5000); });
