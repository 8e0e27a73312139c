// The frame: who is signed in, which page is shown, and one look at the overview per second while the page is visible.

import { h, fill } from "./dom.js";
import { get, me, whoAmI, signOut } from "./api.js";
import { signInPage } from "./signin.js";
import { overviewPage } from "./overview.js";

const LOOK_MS = 1000;
const PAGES = [
  { path: "", title: "Overview", show: ({ overview }) => overviewPage(overview) },
];

const app = document.getElementById("app");
const state = { overview: null, error: "", signingIn: false };
let timer = 0;

const current = () => PAGES.find((page) => page.path === location.hash.replace(/^#\/?/, "").split("/")[0]) ?? PAGES[0];

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
  if (state.overview === null) return h("p.soft", { role: "status" }, state.error || "Asking the brokers…");
  return [state.error ? h("p.banner.breach", { role: "alert" }, h("strong", {}, "Not current"), h("span", {}, state.error)) : null, current().show(state)];
}

function render() {
  document.title = state.overview?.verdict === "alarm" ? "✕ georelay" : "georelay";
  fill(app, header(), h("main", { id: "main", tabindex: "-1" }, content()));
}

async function look() {
  clearTimeout(timer);
  if (state.signingIn || document.hidden) return;
  try {
    state.overview = await get("/v1/overview");
    state.error = "";
  } catch (error) {
    if (error.status === 401) state.signingIn = true;
    state.error = error.message;
  }
  render();
  timer = setTimeout(look, LOOK_MS);
}

async function entered() {
  state.signingIn = false;
  render();
  await look();
}

async function leave() {
  await signOut();
  state.overview = null;
  state.signingIn = true;
  render();
}

function turnLight() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.light ?? (dark ? "dark" : "light");
  document.documentElement.dataset.light = localStorage.light = now === "dark" ? "light" : "dark";
}

async function start() {
  if (localStorage.light) document.documentElement.dataset.light = localStorage.light;
  addEventListener("hashchange", () => { render(); document.getElementById("main").focus({ preventScroll: true }); scrollTo(0, 0); });
  document.addEventListener("visibilitychange", look);
  render();
  await whoAmI();
  state.signingIn = me.sign_in_required && me.user === null;
  render();
  await look();
}

start().catch((error) => { state.error = error.message; render(); timer = setTimeout(() => location.reload(), 5000); });
