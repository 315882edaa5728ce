// The sessions, and one session with its tree of execs.

import { Refused, get, post } from "./api.js";
import { brief, confinement, duration, ending, facts, make, time, toast, verdict } from "./dom.js";
import { Selection, execDetail, keyOf } from "./list.js";

export function sessions(place, state, id) {
  if (id) return one(place, state, id);
  return state.me.may_operate ? all(place, state) : seen(place, state);
}

/** What an auditor may know of sessions that go on: those of the latest execs, and what they did last. */
function seen(place, state) {
  const rows = make("div.rows.sessions", { role: "listbox", "aria-label": "Sessions", tabindex: "0" });
  const selection = new Selection(rows, (key) => { if (key) location.hash = `#sessions/${key}`; });
  const again = setInterval(() => place.isConnected ? draw() : clearInterval(again), 3000);
  place.append(rows);

  function draw() {
    const latest = new Map();
    for (const exec of state.recent.execs.values()) {
      const session = latest.get(exec.session) ?? { count: 0 };
      latest.delete(exec.session);
      latest.set(exec.session, { exec, count: session.count + 1 });
    }
    rows.replaceChildren(
      make("div.row.is-head", { "aria-hidden": "true" }, ["Verdict", "Latest command", "Session", "Gate", "Execs"].map((word) => make("span", word))),
      ...[...latest.values()].reverse().map(({ exec, count }) => make(
        "div.row", { role: "option", "data-key": exec.session },
        verdict(exec),
        make("span.command", exec.command),
        make("span.rule", make("code", exec.session.slice(0, 12))),
        make("span.rule", exec.gate ?? ""),
        make("span.waited", String(count)),
      )),
      ...(latest.size ? [] : [make("p.empty", "No session has asked lately. Earlier ones are in History.")]),
    );
    selection.mark();
  }
  draw();
  return { key: (key) => chooses(selection, key) };
}

/** Keys of a list of sessions. */
function chooses(selection, key) {
  if (key === "j" || key === "ArrowDown") selectNext(selection, 1);
  else if (key === "k" || key === "ArrowUp") selectNext(selection, -1);
  else if (key === "Enter" && selection.key) location.hash = `#sessions/${selection.key}`;
  else return false;
  return true;
}

function all(place, state) {
  const rows = make("div.rows.sessions", { role: "listbox", "aria-label": "Sessions", tabindex: "0" });
  const selection = new Selection(rows, (key) => { if (key) location.hash = `#sessions/${key}`; });
  place.append(rows);
  const again = setInterval(() => place.isConnected ? draw() : clearInterval(again), 3000);

  async function draw() {
    let sessions;
    try {
      ({ sessions } = await get("/api/sessions"));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      // What was seen stays; that there is no connection is told above.
      if (error.status !== 0 || !rows.childElementCount) rows.replaceChildren(make("p.empty.error", error.message));
      return;
    }
    rows.replaceChildren(
      make("div.row.is-head", { "aria-hidden": "true" }, ["State", "Command", "Labels", "Gate", "For"].map((word) => make("span", word))),
      ...sessions.map((session) => make(
        "div.row", { role: "option", "data-key": session.id },
        session.pending ? make("span.verdict.waiting", `${session.pending} waiting`) : make("span.verdict.run", "live"),
        make("span.command", { title: session.command }, brief(session.command) || session.id),
        make("span.rule.labels", session.labels.map(([name, value]) => `${name}=${value}`).join(" ")),
        make("span.rule", [session.gate, session.hostname].filter(Boolean).join(" on ")),
        make("span.waited", duration(Math.max(0, Date.now() + state.clockAhead - session.since))),
      )),
      ...(sessions.length ? [] : [make("p.empty", "No session is connected. Those that ended are in History.")]),
    );
    selection.mark();
  }
  draw();
  return { key: (key) => chooses(selection, key) };
}

// Moving over sessions doesn't open them.
function selectNext(selection, step) {
  const open = selection.open;
  selection.open = () => {};
  selection.move(step);
  selection.open = open;
}

function one(place, state, id) {
  const split = make("div.split");
  place.append(make("p", make("a", { href: "#sessions" }, "← Sessions")), split);
  let loaded = null;
  let waiting = false;
  // Its end is no exec, so nothing tells of it.
  const again = setInterval(() => {
    if (!place.isConnected || loaded?.session.ended) clearInterval(again);
    else if (!keys.selection?.key && !document.querySelector("dialog[open]")) draw();
  }, 3000);

  async function draw() {
    waiting = false;
    try {
      loaded = await get(`/api/sessions/${encodeURIComponent(id)}`);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (error.status !== 0 || !split.childElementCount) split.replaceChildren(make("p.empty.error", error.message));
      return;
    }
    const { session, execs, truncated } = loaded;
    const now = session.ended ?? Date.now() + state.clockAhead;
    const first = Math.min(session.started ?? now, execs[0]?.time ?? now);
    const last = execs.reduce((latest, exec) => Math.max(latest, exec.time + lasts(exec, now)), first + 1);
    const rows = make("div.rows.tree", { role: "tree", "aria-label": "Execs", tabindex: "0" });
    const selection = new Selection(rows, show);
    rows.append(make("div.row.is-head", { "aria-hidden": "true" },
      ["Verdict", "Command", "Status", "Waited, and ran", "Took"].map((word) => make("span", word))));
    rows.append(...ordered(execs).map(([exec, depth]) => make(
      "div.row", { role: "treeitem", "data-key": keyOf(exec), "aria-level": String(depth + 1), "--depth": String(depth), title: exec.reason || null },
      verdict(exec),
      make("span.command", exec.command),
      make("span.waited.ending", ending(exec)),
      bar(exec, first, last, now),
      make("span.waited", duration(exec.elapsed)),
    )));
    if (!execs.length) rows.append(make("p.empty", "It hasn't asked for anything yet."));
    const end = session.ended || !state.me.may_operate
      ? null
      : make("button.refuse", { onclick: () => terminate(id, draw) }, "End this session");
    split.replaceChildren(make("div", make("section.card", make("h2.command", session.command || id), facts([
      ["Session", make("code", id)],
      ["Gate", [session.gate, session.hostname].filter(Boolean).join(" on ")],
      ["User", session.user],
      ["Directory", make("code", session.workdir ?? "")],
      ["Sandbox", confinement(session)],
      ["Profile", session.sandbox_info?.profile],
      ["Not enforced", session.sandbox_info?.not_enforced.join("; ")],
      ["Not allowed", session.sandbox_info?.not_granted.join("; ")],
      ["Labels", session.labels.map(([name, value]) => `${name}=${value}`).join("  ")],
      ["Started", time(session.started)],
      ["Ended", session.ended ? make("span", time(session.ended), ` ${session.end_reason ?? ""}`) : null],
      ["Terminated", session.terminated ? make("span", time(session.terminated.at), ` by ${session.terminated.by}`,
        session.terminated.reason ? `: ${session.terminated.reason}` : "") : null],
      ["Lost events", session.lost_events ? make("span.bad-status", String(session.lost_events)) : null],
    ]), end), make("h3", truncated ? "The first execs of the session; History has the others" : "Execs"), rows));
    function show(key) {
      split.querySelector(".detail")?.remove();
      const exec = execs.find((exec) => keyOf(exec) === key);
      split.classList.toggle("has-detail", Boolean(exec));
      if (exec) split.append(execDetail(exec, () => selection.choose(null)));
    }
    keys.selection = selection;
  }

  const keys = {
    selection: null,
    // While the session lives: once in a second, and only when something of it has come.
    execs: (execs) => {
      if (waiting || keys.selection?.key || !execs.some((exec) => exec.session === id)) return;
      waiting = true;
      setTimeout(() => place.isConnected && draw(), 1000);
    },
    key: (key) => {
      if (key === "Escape") {
        if (keys.selection?.key) keys.selection.choose(null);
        else location.hash = "#sessions";
      } else if (key === "j" || key === "ArrowDown") keys.selection?.move(1);
      else if (key === "k" || key === "ArrowUp") keys.selection?.move(-1);
      else return false;
      return true;
    },
  };
  draw();
  return keys;
}

/** Asks once more, and for a reason, before a session is ended. */
function terminate(id, ended) {
  const reason = make("input", { placeholder: "Why: its owner is told", "aria-label": "Reason", maxlength: "1024" });
  const dialog = make("dialog.card.question", make("form", { method: "dialog" },
    make("h2", "End this session?"),
    make("p", "All that runs in it is ended, and what it still asks for is denied. That can't be undone."),
    reason,
    make("div.answer", make("button.refuse", { type: "submit", value: "end" }, "End the session"),
      make("button", { type: "button", onclick: () => dialog.close() }, "Keep it"))));
  dialog.addEventListener("close", async () => {
    dialog.remove();
    if (dialog.returnValue !== "end") return;
    try {
      const { had_ended: had } = await post(`/api/sessions/${encodeURIComponent(id)}/terminate`, { reason: reason.value });
      toast(had ? "It had ended already. Nothing was changed." : "The session ends.");
      ended();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      toast(error.message);
    }
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** Execs, each below the one that it descends from, with how deep it is. */
function ordered(execs) {
  const below = new Map();
  const known = new Set(execs.map((exec) => exec.exec));
  for (const exec of execs) {
    const parent = known.has(exec.parent) ? exec.parent : 0;
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(exec);
  }
  const result = [];
  const open = [...(below.get(0) ?? [])].reverse().map((exec) => [exec, 0]);
  while (open.length) {
    const [exec, depth] = open.pop();
    result.push([exec, depth]);
    for (const child of [...(below.get(exec.exec) ?? [])].reverse()) open.push([child, Math.min(depth + 1, 24)]);
  }
  return result;
}

/** How long an exec waited for its verdict, in milliseconds; what waits does so until now. */
function waited(exec, now) {
  return exec.waited ?? (exec.verdict || exec.withdrawn ? 0 : Math.max(0, now - exec.time));
}

/** How long it waited and ran; what runs does so until now. */
function lasts(exec, now) {
  const runs = exec.verdict === "run" || exec.verdict === "escalate";
  const has_ended = exec.exit_code != null || exec.signal != null || exec.start_error;
  const waits = waited(exec, now);
  return waits + (exec.elapsed ?? (runs && !has_ended ? Math.max(0, now - exec.time - waits) : 0));
}

function bar(exec, first, last, now) {
  const share = (milliseconds) => `${(100 * milliseconds) / (last - first)}%`;
  const begins = Math.max(0, exec.time - first);
  const part = (kind, from, length) => {
    const line = make(`i.${kind}`);
    line.style.left = share(from);
    line.style.width = share(length);
    return line;
  };
  const waits = waited(exec, now);
  return make("span.span", { "aria-hidden": "true" },
    part("waiting", begins, waits), part(exec.verdict ?? "withdrawn", begins + waits, lasts(exec, now) - waits));
}
