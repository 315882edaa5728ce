// The console: one page over what the policy service serves below /api.

import { Refused, get, listen, post } from "./api.js";
import { approvals } from "./approvals.js";
import { history } from "./history.js";
import { Recent, live } from "./live.js";
import { rules } from "./rules.js";
import { sessions } from "./sessions.js";

const VIEWS = { live, approvals, sessions, history, rules };
const CLOSED_KEPT = 20;
const by = (id) => document.getElementById(id);
const state = { me: null, recent: new Recent(), approvals: new Map(), clockAhead: 0, filter: "" };
let view = null;
let stop = null;

async function begin() {
  try {
    state.me = await get("/api/me");
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    logOut(error.status === 401 ? "" : error.message);
    return;
  }
  state.clockAhead = state.me.now - Date.now();
  by("login").hidden = true;
  by("console").hidden = false;
  by("logout").title = `Log out ${state.me.name}`;
  hear();
  route();
}

function hear() {
  stop?.();
  stop = listen({
    connected: (is) => {
      const place = by("connection");
      place.textContent = is ? "live" : "no connection";
      place.className = `connection ${is ? "is-live" : "is-lost"}`;
      by("lost").hidden = is;
      // What was open before a break may have been closed meanwhile: the service tells what is open now.
      if (is) state.approvals.clear(), countPending();
    },
    again: () => state.me && setTimeout(hear, 2000),
    execs: (execs) => {
      state.recent.take(execs);
      view?.execs?.(execs);
    },
    approval: (approval) => {
      state.approvals.delete(approval.id);
      state.approvals.set(approval.id, approval);
      const closed = [...state.approvals.values()].filter((one) => one.state !== "pending");
      for (const old of closed.slice(0, Math.max(0, closed.length - CLOSED_KEPT))) state.approvals.delete(old.id);
      countPending();
    },
    status: (status) => {
      by("rules-error").hidden = !status.rules_error;
      by("rules-error").title = status.rules_error ?? "";
    },
  });
}

function countPending() {
  const count = [...state.approvals.values()].filter((approval) => approval.state === "pending").length;
  by("pending").hidden = count === 0;
  by("pending").textContent = String(count);
  document.title = count ? `(${count}) execgate` : "execgate";
  view?.approvals?.();
}

function route() {
  if (!state.me) return;
  const [name, rest] = location.hash.slice(1).split("/", 2);
  const chosen = Object.hasOwn(VIEWS, name) ? name : "live";
  for (const tab of by("tabs").children) {
    if (tab.dataset.view === chosen) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  // A new element each time: a view knows by `isConnected` that it is over.
  const place = document.createElement("div");
  by("view").replaceChildren(place);
  view = VIEWS[chosen](place, state, rest);
}

function logOut(message) {
  stop?.();
  stop = null;
  state.me = null;
  by("view").replaceChildren();
  by("console").hidden = true;
  by("login").hidden = false;
  by("login-error").textContent = message;
  by("token").focus();
}

by("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await post("/api/login", { token: by("token").value.trim() });
    by("token").value = "";
    by("login-error").textContent = "";
    await begin();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    by("login-error").textContent = error.message;
    by("token").select();
  }
});
by("logout").addEventListener("click", () => post("/api/logout").catch(() => {}).finally(() => logOut("")));
by("help").addEventListener("click", () => by("keys").showModal());
by("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* a browser that keeps nothing */ }
});
document.addEventListener("logged-out", () => state.me && logOut("Your login has ended."));
addEventListener("hashchange", route);
addEventListener("keydown", (event) => {
  if (!state.me || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const numbered = by("tabs").children[Number(event.key) - 1];
  if (/^[1-9]$/.test(event.key) && numbered) location.hash = numbered.hash;
  else if (event.key === "?") by("keys").showModal();
  else if (!view?.key?.(event.key)) return;
  event.preventDefault();
});
setInterval(() => {
  if (state.me) by("rate").textContent = `${state.recent.rate().toLocaleString()} execs/min`;
}, 1000);
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* a browser that keeps nothing */ }
begin();
