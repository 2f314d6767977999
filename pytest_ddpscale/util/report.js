"use strict";
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const number = (words) => parseFloat(words.replace("−", "-").replace(/^[≥≤±+ ]+/, ""));
const compared = (a, b) => number(a) - number(b) || a.localeCompare(b);
document.documentElement.style.setProperty("--title", JSON.stringify(document.title));
for (const table of all("table.sortable")) {
  const heads = all("th", table.tHead), bodies = [...table.tBodies], rowsOf = (body) => all("tr:not(.note)", body);
  for (const head of heads) {
    head.tabIndex = 0;
    head.onclick = () => {
      const sign = head.ariaSort === "ascending" ? -1 : 1, words = (row) => row.cells[head.cellIndex].textContent.trim();
      for (const one of heads) one.ariaSort = null;
      head.ariaSort = sign > 0 ? "ascending" : "descending";
      for (const body of bodies) body.prepend(...rowsOf(body).sort((a, b) => sign * compared(words(a), words(b))));
    };
    head.onkeydown = (event) => { if (event.key === "Enter") head.click(); };
  }
}
const everyS = Number(document.body.dataset.refreshS);
if (everyS) {
  const pause = document.createElement("button");
  pause.append("Pause");
  pause.ariaPressed = "false";
  pause.onclick = () => { pause.ariaPressed = String(pause.ariaPressed === "false"); };
  document.querySelector("h1").before(pause);
  setInterval(() => {
    if (pause.ariaPressed === "false") location.reload();
  }, everyS * 1000);
}
