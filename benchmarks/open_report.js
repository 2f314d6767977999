// Opens report.html in Chromium as readers do: light, dark, on a phone, on A4; with --live also while a run goes on.
//
//   npm install --no-save axe-core puppeteer-core
//   node benchmarks/open_report.js RUN_DIR/report.html /tmp/report           a run that is over
//   node benchmarks/open_report.js RUN_DIR/report.html /tmp/report --live    one that is being measured
//
// Prints one line of JSON for each size: its height in px and in screens as it opens, how much wider than the
// window it is, and for A4 the pages. Leaves pictures of the first two screens, and of A4 a PDF. Exit 1 if anything is wrong: the console
// said something, a request left the page, content is wider than the window, axe-core finds something serious, a table
// cannot be sorted; live also if the page does not come back by itself, or not
// to where it was read, or though its reader paused that.
const fs = require("fs"), path = require("path"), puppeteer = require("puppeteer-core");

// A4 is 210 mm wide less the margins of 12 mm, at 96 dots an inch.
const SIZES = [["light", 1280, 900, "light"], ["dark", 1280, 900, "dark"], ["phone", 400, 844, "light"], ["a4", 703, 1032, "light", "print"]];
const SCREENS_PICTURED = 2, SCROLLED_TO = 500, REFRESHES = 2, LONGEST_WAIT_MS = 30000, LONGER_THAN_A_REFRESH_MS = 13000;
const [file, out, mode] = process.argv.slice(2), url = "file://" + path.resolve(file), isLive = mode === "--live";
const progresses = new Set();

async function opened(browser, [, width, height, scheme, media], bypassCSP) {
  const page = await browser.newPage(), said = [], requests = [];
  page.on("console", (message) => { if (["error", "warn"].includes(message.type())) said.push(message.text()); });
  page.on("pageerror", (error) => said.push(String(error)));
  page.on("requestfailed", (request) => said.push(`${request.url().slice(0, 80)}: ${request.failure().errorText}`));
  page.on("request", (request) => { if (request.url() !== url && !request.url().startsWith("data:")) requests.push(request.url().slice(0, 80)); });
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  if (media) await page.emulateMediaType(media);
  await page.setBypassCSP(bypassCSP);
  const began = Date.now();
  await page.goto(url, { waitUntil: "load", timeout: 60000 });
  return { page, said, requests, ms: Date.now() - began };
}

// How far each refresh moves the page, in pixels, and how many seconds apart they came.
async function refreshes(page) {
  const lost = [], seconds = [], said = [];
  await page.evaluate((y) => scrollTo(0, y), SCROLLED_TO);
  for (let number = 0; number < REFRESHES; number++) {
    const began = Date.now();
    await readAgain(page);
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 100))));
    lost.push(Math.round(Math.abs(await page.evaluate(() => scrollY) - SCROLLED_TO)));
    seconds.push((Date.now() - began) / 1000);
    said.push(await page.evaluate(() => document.querySelector(".live")?.textContent ?? ""));
  }
  await paused(page);
  said.forEach((progress) => progresses.add(progress));
  return { lost, seconds, goesOn: !said.includes("") };
}

function readAgain(page) {
  return new Promise((done, failed) => {
    const timer = setTimeout(() => failed(new Error(`not read again within ${LONGEST_WAIT_MS} ms`)), LONGEST_WAIT_MS);
    page.once("load", () => { clearTimeout(timer); done(); });
  });
}

async function paused(page) {
  await page.evaluate(() => { document.querySelector("button[aria-pressed]").click(); window.isPaused = true; });
}

// Of each table that its reader can sort whether that works; a page without a script shows all rows.
function tablesThatFail() {
  const failing = [];
  for (const table of document.querySelectorAll("table.sortable")) {
    const rows = () => [...table.querySelectorAll("tbody tr:not(.note)")];
    const name = table.parentElement.ariaLabel, count = rows().length;
    if (table.tBodies.length > 1) continue;  // sorted within each group
    for (const head of table.tHead.querySelectorAll("th")) {
      head.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
      const up = rows().map((row) => row.textContent);
      head.dispatchEvent(new KeyboardEvent("keydown", { key: " " }));
      const down = rows().map((row) => row.textContent);
      if (head.ariaSort !== "descending" || up.length !== count || new Set(up).size > 1 && [...up].sort().join() !== [...down].sort().join())
        failing.push(`${name}: ${head.textContent} not sorted`);
    }
  }
  return failing;
}

// Height of the page, and how much wider than the window it is, and the widest table than its own box, in pixels.
function measured() {
  const root = document.documentElement, over = [...document.querySelectorAll(".box, pre")].map((box) => box.scrollWidth - box.clientWidth);
  return { height: root.scrollHeight, wide: root.scrollWidth - innerWidth, boxes: Math.max(0, ...over) };
}

async function look(browser, size) {
  const [name, width, screen, , media] = size;
  const { page, said, requests, ms } = await opened(browser, size, false);
  const live = isLive ? await refreshes(page) : undefined;
  const { height, wide, boxes } = await page.evaluate(measured);
  await page.screenshot({ path: `${out}-${name}.png`, clip: { x: 0, y: 0, width, height: Math.min(SCREENS_PICTURED * screen, height) }, captureBeyondViewport: true });
  let pages;
  if (media) {
    const pdf = Buffer.from(await page.pdf({ path: `${out}.pdf`, preferCSSPageSize: true, printBackground: true }));
    pages = pdf.toString("latin1").match(/\/Type\s*\/Page\b/g).length;
  }
  await page.close();
  // axe-core is a script that the page's own policy forbids: in a second window, right after it was read.
  const second = await opened(browser, size, true);
  if (isLive) await paused(second.page);
  await second.page.evaluate(() => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
  const pausedAt = Date.now();
  await second.page.evaluate(fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8"));
  const { violations } = await second.page.evaluate(() => axe.run({ resultTypes: ["violations"] }));
  const tables = media ? [] : await second.page.evaluate(tablesThatFail);
  if (live) {
    await new Promise((done) => setTimeout(done, Math.max(LONGER_THAN_A_REFRESH_MS - (Date.now() - pausedAt), 0)));
    live.stays = await second.page.evaluate(() => window.isPaused === true);
  }
  await second.page.close();
  const found = violations.map((one) => [one.impact, one.id, one.nodes.length, one.nodes[0].target.join(" "), one.nodes[0].failureSummary.slice(0, 300)]);
  const isFine = !said.length && !requests.length && wide <= 0 && !tables.length && !found.some(([impact]) => ["serious", "critical"].includes(impact))
    && (!live || live.goesOn && live.stays && live.lost.every((pixels) => pixels <= 2));
  console.log(JSON.stringify({ name, isFine, ms, height, screens: +(height / screen).toFixed(1), pages, wide, boxes, said, requests, tables, axe: found, live }));
  return isFine;
}

(async () => {
  const args = ["--no-sandbox", "--disable-gpu"];
  const browser = await puppeteer.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args, protocolTimeout: 120000 });
  try {
    const fine = [];
    for (const size of SIZES) fine.push(await look(browser, size));
    const isNewOnes = !isLive || progresses.size > 1;
    if (isLive) console.log(JSON.stringify({ name: "pages that differ", isFine: isNewOnes, pages: progresses.size }));
    process.exitCode = fine.every(Boolean) && isNewOnes ? 0 : 1;
  } finally {
    await browser.close();
  }
})();
