"use strict";
// Tables with a caption can be sorted, within each group of rows above a note as wide as the table; long ones filtered.
const LEAST_FILTERED = 12;
document.documentElement.style.setProperty("--title", JSON.stringify(document.title));
for (const table of document.querySelectorAll("table.sortable")) {
  const bodies = [...table.tBodies];
  const rowsOf = (body) => [...body.rows].filter((row) => !row.classList.contains("note"));
  const content = (row, column) => row.cells[column].textContent.trim();
  const number = (words) => {
    const match = words.replace("−", "-").match(/[+-]?\d+(\.\d+)?/);
    return match && /^[≥≤±+-]?\s*\d/.test(words.replace("−", "-")) ? parseFloat(match[0]) : NaN;
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (!head.textContent) return;
    const button = document.createElement("button"), paper = document.createElement("span");
    button.type = "button";
    paper.className = "paper";
    button.textContent = paper.textContent = head.textContent;
    head.replaceChildren(button, paper);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
      for (const body of bodies) {
        body.prepend(...rowsOf(body).sort((a, b) => {
          const one = content(a, column), other = content(b, column);
          const difference = number(one) - number(other);
          return sign * (Number.isNaN(difference) ? one.localeCompare(other) : difference);
        }));
      }
    });
  });
  if (bodies.flatMap(rowsOf).length < LEAST_FILTERED) continue;
  const label = document.createElement("label"), input = document.createElement("input");
  label.className = "filter";
  input.type = "search";
  label.append("Filter ", input);
  table.parentElement.before(label);
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const body of bodies) {
      for (const row of rowsOf(body)) row.hidden = !row.textContent.toLowerCase().includes(wanted);
      for (const note of body.querySelectorAll(".note")) note.hidden = rowsOf(body).every((row) => row.hidden) && wanted !== "";
    }
  });
}
// Reload the page while the run goes on, unless the reader pressed Pause or uses a filter.
const everyS = Number(document.body.dataset.refreshS);
if (everyS) {
  const pause = document.createElement("button");
  pause.type = "button";
  pause.textContent = "Pause";
  pause.setAttribute("aria-pressed", "false");
  pause.addEventListener("click", () => pause.setAttribute("aria-pressed", String(pause.ariaPressed !== "true")));
  document.querySelector("h1").before(pause);
  const isFiltering = () => [...document.querySelectorAll("input")].some((one) => one.value || one === document.activeElement);
  // Content above may grow between reloads, so remember the reader's place by a heading, not by pixels.
  const headings = () => [...document.querySelectorAll("dt, h2")].filter((one) => one.textContent);
  const named = (heading) => `${heading.tagName} ${heading.textContent}`;
  const topOf = (heading) => heading.getBoundingClientRect().top;
  history.scrollRestoration = "manual";
  if (history.state) {
    const heading = headings().find((one) => named(one) === history.state.name);
    scrollTo(0, heading ? topOf(heading) + scrollY - history.state.top : history.state.y);
  }
  setInterval(() => {
    if (pause.ariaPressed === "true" || isFiltering()) return;
    const heading = headings().find((one) => topOf(one) >= 0);
    history.replaceState({ name: heading && named(heading), top: heading && topOf(heading), y: scrollY }, "");
    location.reload();
  }, everyS * 1000);
}
