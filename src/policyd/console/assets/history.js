// Search in all that is stored.

import { Refused, get } from "./api.js";
import { make, toast } from "./dom.js";
import { Selection, execDetail, execHead, execRow, keyOf } from "./list.js";

const PAGE = 200;
const FIELDS = [
  ["program", "Program: git, or /usr/bin/git"],
  ["session", "Session begins with"],
  ["gate", "Gate: token:ci-7"],
  ["code", "Code or reason code"],
  ["label", "Label: team=web"],
];

export function history(place) {
  const inputs = FIELDS.map(([name, words]) => make("input", { type: "search", name, placeholder: words, "aria-label": words }));
  const verdicts = make("select", { name: "verdict", "aria-label": "Verdict" },
    ["", "run", "escalate", "deny", "monitored"].map((word) => make("option", { value: word }, word || "any verdict")));
  const since = make("select", { name: "since", "aria-label": "Since" },
    [["", "any time"], ["900", "15 minutes"], ["3600", "an hour"], ["86400", "a day"], ["604800", "a week"]].map(([value, words]) => make("option", { value }, words)));
  const rows = make("div.rows", { role: "listbox", "aria-label": "Execs, the latest first", tabindex: "0" });
  const split = make("div.split", rows);
  const more = make("button", { hidden: true, onclick: () => search(token) }, "Earlier ones");
  const found = new Map();
  let token = null;
  const selection = new Selection(rows, (key) => {
    split.querySelector(".detail")?.remove();
    split.classList.toggle("has-detail", found.has(key));
    if (found.has(key)) split.append(execDetail(found.get(key), () => selection.choose(null)));
  });
  const form = make("form.toolbar", { onsubmit: (event) => { event.preventDefault(); search(null); } },
    inputs, verdicts, since, make("button.primary", { type: "submit" }, "Search"));
  place.append(form, split, make("p", more));

  async function search(from) {
    const query = Object.fromEntries([...inputs, verdicts, since].map((input) => [input.name, input.value.trim()]));
    let answer;
    try {
      answer = await get("/api/execs", { ...query, limit: PAGE, page: from });
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (error.status === 0 && found.size) toast(error.message);
      else rows.replaceChildren(make("p.empty.error", error.message));
      return;
    }
    if (!from) {
      found.clear();
      selection.choose(null);
      rows.replaceChildren(execHead());
    }
    for (const exec of answer.execs) {
      found.set(keyOf(exec), exec);
      rows.append(execRow(exec));
    }
    if (!found.size) rows.append(make("p.empty", "Nothing that is stored matches."));
    token = answer.next;
    more.hidden = !token;
  }
  search(null);
  return {
    key: (key) => {
      if (key === "/") inputs[0].focus();
      else if (key === "j" || key === "ArrowDown") selection.move(1);
      else if (key === "k" || key === "ArrowUp") selection.move(-1);
      else if (key === "Escape") selection.choose(null);
      else return false;
      return true;
    },
  };
}
