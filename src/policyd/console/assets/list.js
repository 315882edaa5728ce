// A list in which one row is selected, by mouse or keys, and shown beside it.

import { duration, ending, facts, make, time, verdict } from "./dom.js";

/** The row of an exec. */
export function execRow(exec) {
  return make(
    "div.row",
    { role: "option", "data-key": keyOf(exec), title: exec.reason || null },
    time(exec.time),
    verdict(exec),
    make("span.command", exec.command),
    make("span.rule", exec.rule || exec.code || ""),
    make("span.waited", duration(exec.waited)),
  );
}

export const execHead = () =>
  make(
    "div.row.is-head",
    { "aria-hidden": "true" },
    make("span", "Time"),
    make("span", "Verdict"),
    make("span", "Command"),
    make("span", "Rule"),
    make("span.waited", "Waited"),
  );

export const keyOf = (exec) => `${exec.session}/${exec.exec}`;

/** All that is known of an exec. */
export function execDetail(exec, close) {
  return make(
    "aside.detail.card",
    { "aria-label": "The exec" },
    make("button.plain.close", { onclick: close, "aria-label": "Close" }, "✕"),
    make("h2", verdict(exec), " ", exec.program_name || "command"),
    make("pre.command", exec.command),
    facts([
      ["Program", make("code", exec.program ?? "")],
      ["Directory", make("code", exec.workdir ?? "")],
      ["Reason", exec.reason],
      ["Rule", exec.rule],
      ["Code", [exec.code, exec.reason_code].filter(Boolean).join(" · ")],
      ["Policy", exec.policy_revision],
      ["Asked at", time(exec.time)],
      ["Waited", duration(exec.waited)],
      ["Ran for", duration(exec.elapsed)],
      ["Exit status", ending(exec)],
      ["Process", exec.process ? `${exec.process}, of ${exec.parent_process || "?"}` : null],
      ["User", exec.user],
      ["Gate", exec.gate],
      ["Session", make("a", { href: `#sessions/${exec.session}` }, make("code", exec.session))],
      ["Exec", `${exec.exec}${exec.parent ? `, below ${exec.parent}` : ""}`],
    ]),
  );
}

/**
 * Keeps one row selected. `open(key)` is called when one is chosen, with null when none is any more.
 */
export class Selection {
  constructor(list, open) {
    this.list = list;
    this.open = open;
    this.key = null;
    list.addEventListener("click", (event) => {
      const row = event.target.closest("[data-key]");
      if (row && !event.target.closest("a, button, input, select")) this.choose(row.dataset.key);
    });
  }

  rows() {
    return [...this.list.querySelectorAll("[data-key]")];
  }

  choose(key) {
    this.key = key;
    this.mark();
    this.open(key);
  }

  /** After rows were made anew. */
  mark() {
    for (const row of this.rows()) {
      const is = row.dataset.key === this.key;
      // A card is no option of a list: it has controls of its own.
      if (!row.hasAttribute("role")) row.setAttribute("aria-current", String(is));
      else row.setAttribute("aria-selected", String(is));
      if (is) row.id = "chosen";
      else row.removeAttribute("id");
    }
    if (this.list.hasAttribute("tabindex")) this.list.setAttribute("aria-activedescendant", this.key ? "chosen" : "");
  }

  move(step) {
    const rows = this.rows();
    if (!rows.length) return;
    const at = rows.findIndex((row) => row.dataset.key === this.key);
    const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + step))];
    this.choose(next.dataset.key);
    next.scrollIntoView({ block: "nearest" });
  }
}

/** Whether an exec is what the words of a filter ask for: `deny git session:3f2a gate:ci-7 code:timed-out`. */
export function matcher(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (exec) =>
    words.every((word) => {
      const [name, value] = word.includes(":") ? [word.slice(0, word.indexOf(":")), word.slice(word.indexOf(":") + 1)] : [null, word];
      switch (name) {
        case "session": return exec.session.startsWith(value);
        case "gate": return (exec.gate ?? "").toLowerCase().includes(value);
        case "code": return exec.code === value || (exec.reason_code ?? "").toLowerCase() === value;
        case "program": return (exec.program_name ?? "").toLowerCase() === value;
        case "rule": return (exec.rule ?? "").toLowerCase().includes(value);
        case "verdict": return exec.verdict === value;
        default:
          return (
            exec.verdict === word || exec.command.toLowerCase().includes(word) || (exec.rule ?? "").toLowerCase().includes(word)
          );
      }
    });
}
