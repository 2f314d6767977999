// Opens a report.html in Chromium as a reader would: light, dark, on a phone, on A4; a line of JSON each with the time to
// open, what the console said, what left the page, what is wider than the window, and what axe-core finds; pictures beside.
//   npm install --no-save axe-core puppeteer-core && node benchmarks/open_report.js RUN_DIR/report.html /tmp/report
const puppeteer = require("puppeteer-core"), fs = require("fs");
(async () => {
  const [file, out] = process.argv.slice(2), url = "file://" + require("path").resolve(file);
  const browser = await puppeteer.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"], protocolTimeout: 120000 });
  for (const [name, width, height, scheme, media] of [["light", 1200, 900, "light"], ["dark", 1200, 900, "dark"], ["phone", 390, 844, "light"], ["a4", 794, 1123, "light", "print"]]) {
    const page = await browser.newPage(), errors = [], requests = [];
    page.on("console", (m) => { if (["error", "warning"].includes(m.type())) errors.push(m.text()); });
    page.on("pageerror", (e) => errors.push(String(e)));
    page.on("request", (r) => { if (r.url() !== url) requests.push(r.url().slice(0, 80)); });
    await page.setViewport({ width, height });
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    if (media) await page.emulateMediaType(media);
    const begun = Date.now();
    await page.goto(url, { waitUntil: "load", timeout: 60000 });
    const ms = Date.now() - begun;
    await page.screenshot({ path: `${out}-${name}.png`, clip: { x: 0, y: 0, width, height: Math.min(3000, await page.evaluate(() => document.documentElement.scrollHeight)) } });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    await page.setBypassCSP(true); await page.goto(url); 
    await page.evaluate(fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8"));
    const result = await page.evaluate(() => axe.run({ resultTypes: ["violations"] }));
    console.log(JSON.stringify({ name, ms, wide, errors, requests, axe: result.violations.map((v) => [v.impact, v.id, v.nodes.length, v.nodes[0].target.join(" "), v.nodes[0].failureSummary.slice(0, 300)]) }));
    if (media) await page.pdf({ path: `${out}.pdf`, preferCSSPageSize: true, printBackground: true });
    await page.close();
  }
  await browser.close();
})();
