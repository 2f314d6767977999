"use strict";
// Named tables are sorted by their heads, within each group of rows above a note as wide as the table; long ones filtered.
const LEAST_FILTERED = 12;
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const number = (words) => parseFloat(words.replace("−", "-").replace(/^[≥≤±+ ]+/, ""));
document.documentElement.style.setProperty("--title", JSON.stringify(document.title));
for (const table of all("table.sortable")) {
  const heads = all("th", table.tHead), bodies = all("tbody", table), rowsOf = (body) => all("tr:not(.note)", body);
  for (const head of heads) {
    // No real button: Chromium omits those from heads that repeat on the next sheet of paper.
    const button = Object.assign(document.createElement("span"), { role: "button", tabIndex: 0, textContent: head.textContent });
    head.replaceChildren(button);
    button.onkeydown = (event) => event.key === "Enter" && button.click();
    button.onclick = () => {
      const order = head.ariaSort === "ascending" ? "descending" : "ascending", sign = order === "ascending" ? 1 : -1;
      for (const one of heads) one.ariaSort = one === head ? order : null;
      const words = (row) => row.cells[head.cellIndex].textContent.trim();
      const compared = (a, b) => number(a) - number(b) || a.localeCompare(b);
      for (const body of bodies) body.prepend(...rowsOf(body).sort((a, b) => sign * compared(words(a), words(b))));
    };
  }
  if (bodies.flatMap(rowsOf).length < LEAST_FILTERED) continue;
  const label = document.createElement("label"), input = document.createElement("input");
  label.append("Filter ", input);
  table.parentElement.before(label);
  input.oninput = () => {
    const wanted = input.value.toLowerCase();
    for (const body of bodies) {
      for (const row of rowsOf(body)) row.hidden = !row.textContent.toLowerCase().includes(wanted);
      for (const note of all(".note", body)) note.hidden = wanted !== "" && rowsOf(body).every((row) => row.hidden);
    }
  };
}
// Read the page again while the run goes on, unless the reader pressed Pause or uses a filter.
const everyS = Number(document.body.dataset.refreshS);
if (everyS) {
  const pause = Object.assign(document.createElement("button"), { textContent: "Pause", ariaPressed: "false" });
  pause.onclick = () => { pause.ariaPressed = String(pause.ariaPressed === "false"); };
  document.querySelector("h1").before(pause);
  // What is above may grow, so the reader's place is a heading and where it stood.
  const headings = all("dt, h2"), topOf = (at) => headings[at]?.getBoundingClientRect().top;
  if (history.state) scrollBy(0, topOf(history.state.at) - history.state.top);
  setInterval(() => {
    if (pause.ariaPressed === "true" || all("input").some((one) => one.value || one === document.activeElement)) return;
    const at = headings.findIndex((_, at) => topOf(at) >= 0);
    history.replaceState({ at, top: topOf(at) }, "");
    location.reload();
  }, everyS * 1000);
}
