// Whether the site's own search finds what readers ask, on the first hit: CONTRIBUTING.md.
//
//   pip install -e '.[docs]'      the search is the site's, as Material for MkDocs ships it: nothing to install for node
//   node benchmarks/search.js     builds the site (MKDOCS is the command, by default `python -m mkdocs`)
//   node benchmarks/search.js SITE    takes one that is built
//
// Prints each question with the first hit; exit 1 if any is not the page that answers it.
const { execSync } = require("child_process"), fs = require("fs"), os = require("os"), path = require("path"), vm = require("vm");

const ANSWERS = {
  "my node was rejected": "how-to/rejected/",
  "how long does it take": "measuring/#how-long-does-it-take",
  "what does INCOMPLETE mean": "verdicts/#what-accepted-partial-incomplete-and-rejected-mean",
  "B200 has no published speed": "verdicts/#b200-and-rtx-pro-6000-no-published-speed-or-none-near-theirs",
};

function built() {
  const site = fs.mkdtempSync(path.join(os.tmpdir(), "site-")), root = path.join(__dirname, "..");
  execSync(`${process.env.MKDOCS || "python -m mkdocs"} build --strict --quiet -d ${site}`, { cwd: root, stdio: ["ignore", 2, 2] });
  return site;
}

// The worker of the site's pages, given what a page gives it.
async function searchOf(site) {
  const folder = path.join(site, "assets", "javascripts", "workers");
  const name = fs.readdirSync(folder).find((file) => /^search\..*\.js$/.test(file));
  const index = JSON.parse(fs.readFileSync(path.join(site, "search", "search_index.json")));
  let hears, said;
  const self = { addEventListener: (_, heard) => { hears = heard; }, postMessage: (message) => said(message), console };
  vm.runInNewContext(fs.readFileSync(path.join(folder, name), "utf8"), Object.assign(self, { self }));
  const ask = (data) => new Promise((told) => { said = told; hears({ data }); });
  await ask({ type: 0, data: { ...index, options: { suggest: false } } });
  return async (query) => (await ask({ type: 2, data: query })).data.items;
}

async function main() {
  const search = await searchOf(process.argv[2] || built());
  let missed = 0;
  for (const [query, answer] of Object.entries(ANSWERS)) {
    const [page = []] = await search(query), first = page.reduce((best, hit) => (hit.score > best.score ? hit : best), { score: 0 });
    const isMissed = first.location !== answer;
    missed += isMissed;
    console.log(`${isMissed ? "MISSED" : "found "}  ${query}: ${first.location}`);
  }
  process.exit(missed ? 1 : 0);
}
main();
