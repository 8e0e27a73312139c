// Requests of the HTTP API, as anybody may send them; `curl` shows each as a command.

const CONSOLE = "Georelay-Console";
export const me = { sign_in_required: false, user: null, read_only: false, token: "" };
let session = new AbortController(); // of what is asked in it: nothing of that is still asked when it ends

export class Problem extends Error {
  constructor(status, document) {
    super(document.detail ?? `HTTP ${status}`);
    this.status = status;
    this.code = document.code ?? "";
    this.outcome = document.outcome ?? "";
  }
}

async function ask(method, path, body, signal) {
  const headers = { [CONSOLE]: me.token };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: AbortSignal.any([session.signal, ...(signal ? [signal] : [])]), redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "this gateway does not answer", code: "UNAVAILABLE" });
  }
  const text = await answer.text();
  let document = {};
  try { document = text ? JSON.parse(text) : {}; } catch { document = { detail: text.slice(0, 200) }; }
  if (!answer.ok) throw new Problem(answer.status, document);
  return document;
}

export const get = (path, signal) => ask("GET", path, undefined, signal);
export const send = (method, path, body) => ask(method, path, body);

export async function whoAmI() {
  Object.assign(me, await get("/console/session"));
  return me;
}

export async function signIn(credentials) {
  Object.assign(me, await send("POST", "/console/session", credentials));
}

export async function signOut() {
  session.abort();
  session = new AbortController();
  await send("DELETE", "/console/session");
  await whoAmI();
}

export function query(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  return text ? `${path}?${text}` : path;
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export function curl(method, path, body) {
  const user = me.sign_in_required ? ` -u ${quoted(`${me.user?.replace(/^User:/, "") ?? "USER"}`)}` : "";
  const verb = method === "GET" ? "" : ` -X ${method}`;
  const data = body === undefined ? "" : ` -d ${quoted(JSON.stringify(body))}`;
  return `curl${user}${verb} ${quoted(location.origin + path)}${data}`;
}
