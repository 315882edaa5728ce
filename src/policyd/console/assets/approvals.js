// What waits for a person.

import { Refused, post } from "./api.js";
import { confinement, duration, facts, make, time, toast } from "./dom.js";
import { Selection } from "./list.js";

const SHORT = 15_000;
const END = "scroll to the end of the command to be able to approve it";
const SCOPES = [
  ["once", "this once"],
  ["session", "the same command, in this session"],
  ["session-prefix", "this program with these first arguments, in this session"],
  ["gate-prefix", "this program with these first arguments, on this gate"],
];

const words = (approval) => (approval.words === 1 ? "1 word" : `${approval.words} words`);

export function approvals(place, state) {
  const open = make("div.approvals", { role: "feed", "aria-label": "Approvals" });
  const selection = new Selection(open, () => {});
  place.append(open);
  const ticking = setInterval(() => place.isConnected ? tick() : clearInterval(ticking), 500);

  function draw() {
    const sorted = [...state.approvals.values()].sort(
      (one, other) => (other.state === "pending") - (one.state === "pending") || one.opened - other.opened);
    // A card that waits stays as it is: somebody may write in it, or read its command.
    const kept = new Map([...open.querySelectorAll(".approval:not(.is-closed)")].map((card) => [card.dataset.key, card]));
    const cards = sorted.map((approval) => (approval.state === "pending" && kept.get(approval.id)) || card(approval));
    if (!cards.length) cards.push(make("p.empty", "Nobody waits. What rules ask a person about appears here."));
    const shown = new Set(cards);
    for (const element of [...open.children]) if (!shown.has(element)) element.remove();
    // What is taken out and put in again loses the focus, and how far it was scrolled.
    cards.forEach((element, at) => open.children[at] === element || open.insertBefore(element, open.children[at] ?? null));
    if (!state.approvals.has(selection.key)) selection.key = sorted.find((one) => one.state === "pending")?.id ?? null;
    selection.mark();
    tick();
  }

  function card(approval) {
    const pending = approval.state === "pending";
    const note = make("input", { placeholder: "Note (the waiting user reads it if you deny)", "aria-label": "Note", maxlength: "1024" });
    const scope = make("select", { "aria-label": "For which execs" }, SCOPES.map(([value, words]) => make("option", { value }, words)));
    const prefix = make("input", { type: "number", min: "0", max: String(approval.argument_count), value: String(Math.min(1, approval.argument_count)),
      "aria-label": "How many first arguments", title: "How many first arguments", hidden: true });
    const time_ = make("select", { "aria-label": "For how long", hidden: true },
      [["900", "15 minutes"], ["3600", "an hour"], ["28800", "8 hours"], ["86400", "a day"]].map(([value, words]) => make("option", { value }, words)));
    scope.addEventListener("change", () => {
      prefix.hidden = !scope.value.endsWith("-prefix");
      time_.hidden = scope.value === "once";
    });
    const answer = (decision) => resolve(approval, { decision, note: note.value, scope: scope.value, prefix: Number(prefix.value), seconds: Number(time_.value) });
    return make(
      `article.card.approval${pending ? "" : ".is-closed"}`,
      { "data-key": approval.id, "aria-label": `${approval.state}: ${approval.program}, ${words(approval)}` },
      make("header",
        make(`span.verdict.${pending ? "waiting" : approval.state === "approved" ? "run" : approval.state === "denied" ? "deny" : "withdrawn"}`, approval.state),
        make("strong", approval.reason || approval.rule),
        approval.asked ? make("span.muted", `asks ${approval.asked}`) : null,
        make("span.time-left")),
      pending ? make("div.meter", make("i")) : null,
      make("pre.command", { tabindex: 0, role: "group", "aria-label": "The command", onscroll: tick }, approval.command),
      make("p.words", words(approval)),
      facts([
        ["Then it", approval.effect],
        ["Directory", make("code", approval.workdir)],
        ["Program", make("code", approval.program)],
        ["Writable", approval.writable ? make("span", "the session can write ", make("code", approval.writable), ", and so may have made the program") : null],
        ["Gate", [approval.gate, approval.hostname].filter(Boolean).join(" on ")],
        ["Sandbox", confinement(approval)],
        ["Labels", approval.labels.map(([name, value]) => `${name}=${value}`).join("  ")],
        ["User", approval.user],
        ["Rule", approval.rule],
        ["Session", make("a", { href: `#sessions/${approval.session}` }, make("code", approval.session.slice(0, 12)))],
        ["Opened", time(approval.opened)],
        ["Closed", approval.closed ? make("span", time(approval.closed), approval.closed_by ? ` by ${approval.closed_by}` : "") : null],
        ["Note", approval.note],
      ]),
      pending
        ? make("div.answer",
            make("button.approve", { onclick: () => answer("approve"), title: "a", disabled: true }, "Approve"),
            make("button.refuse", { onclick: () => answer("deny"), title: "d" }, "Deny"),
            scope, prefix, time_, note)
        : null,
    );
  }

  async function resolve(approval, decision) {
    try {
      const { outcome, approval: now } = await post(`/api/approvals/${encodeURIComponent(approval.id)}`, decision);
      if (outcome === "resolved") toast(decision.decision === "approve" ? "Approved." : "Denied.");
      else toast(`${now.closed_by || "Something else"} was first: ${now.state}.`);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      toast(error.message);
    }
  }

  // Nobody approves a part of a command: one that is longer than its box has been scrolled to its end before.
  function look(element, approval) {
    const command = element.querySelector("pre.command");
    const approve = element.querySelector("button.approve");
    if (!approve.disabled || !command.clientHeight) return;
    // A part of a pixel may be left where the page is zoomed.
    const isSeen = command.scrollTop + command.clientHeight >= command.scrollHeight - 2;
    approve.disabled = !isSeen;
    const place = element.querySelector(".words");
    place.textContent = isSeen ? words(approval) : `${words(approval)}: ${END}`;
    place.classList.toggle("is-more", !isSeen);
  }

  function tick() {
    for (const element of open.children) {
      const approval = state.approvals.get(element.dataset.key);
      const left = element.querySelector(".time-left");
      if (!approval || !left || approval.state !== "pending") continue;
      look(element, approval);
      const remaining = Math.max(0, approval.expires - Date.now() - state.clockAhead);
      left.textContent = `${duration(Math.ceil(remaining / 1000) * 1000)} left`;
      left.classList.toggle("is-short", remaining < SHORT);
      const share = remaining / Math.max(1, approval.expires - approval.opened);
      element.querySelector(".meter i").style.width = `${Math.min(100, share * 100)}%`;
    }
  }

  draw();
  return {
    approvals: draw,
    key: (key) => {
      // A command with the focus is scrolled by its keys.
      if (key.startsWith("Arrow") && document.activeElement?.matches("pre.command")) return false;
      if (key === "j" || key === "ArrowDown") selection.move(1);
      else if (key === "k" || key === "ArrowUp") selection.move(-1);
      else if (key === "a" || key === "d") {
        const chosen = open.querySelector(`[data-key="${CSS.escape(selection.key ?? "")}"] button.${key === "a" ? "approve" : "refuse"}`);
        if (chosen?.disabled) {
          chosen.closest(".approval").querySelector("pre.command").focus();
          toast(`Not approved: ${END}.`);
        } else chosen?.click();
      } else return false;
      return true;
    },
  };
}
