// The rules in force, and how often each has decided.

import { Refused, get } from "./api.js";
import { facts, make } from "./dom.js";

const CLASS = { ask: "waiting", decide: "withdrawn" };

export function rules(place) {
  const again = setInterval(() => place.isConnected ? draw() : clearInterval(again), 3000);
  async function draw() {
    let answer;
    try {
      answer = await get("/api/rules");
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      // What was seen stays; that there is no connection is told above.
      if (error.status !== 0 || !place.childElementCount) place.replaceChildren(make("p.empty.error", error.message));
      return;
    }
    place.replaceChildren(
      answer.error ? make("section.card.fault", { role: "alert" },
        make("h2", "The rules' files hold what can't be used"),
        make("p", "What is below, the last good rules, stays in force until the files are right:"),
        make("pre.command", answer.error)) : "",
      make("h2", "Rules in force"),
      facts([["Revision", make("code", answer.revision)]]),
      make("h3", "How many execs each has decided since this revision came into force"),
      make("div.rows.rules",
        make("div.row.is-head", ["Decision", "Rule", "Where", "Decided"].map((word) => make("span", word))),
        answer.rules.map((rule) => make("div.row", { title: [rule.text, rule.reason].filter(Boolean).join("\n") },
          rule.monitored
            ? make(`span.verdict.${CLASS[rule.decision] ?? rule.decision}.is-monitored`, { title: "Only monitored: it is recorded, and not acted on" }, `(${rule.decision})`)
            : make(`span.verdict.${CLASS[rule.decision] ?? rule.decision}`, rule.decision),
          make("span.command", rule.text, rule.reason ? make("span.muted", `  ${rule.reason}`) : null),
          make("span.rule", rule.place),
          make("span.waited", String(rule.decided))))),
    );
  }
  draw();
  return { key: () => false };
}
