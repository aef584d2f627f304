// The samples: columns by run, the texts of the calls, filters and search. A sample is a number: run * SPAN + row.

const SPAN = 2 ** 24;
const EXIT_NAMES = { a: "agree_short", b: "agree_think", t: "transfer", s: "small", l: "large", "-": "" };
const DISAGREE = "disagree"; // the exits of a cascade after the short answers did not agree
const store = { runs: [], words: [], calls: [], chunks: [], firsts: [], small: { words: null, chunks: [] } };

async function loadIndex() {
  const index = await valueOf("index");
  Object.assign(store, { runs: index.runs, words: index.words, firsts: index.firsts });
}

const runOf = (sample) => store.runs[Math.floor(sample / SPAN)];
const rowOf = (sample) => sample % SPAN;
const word = (number) => (number < 0 ? null : store.words[number]);

/** Return what the list shows of a sample. */
function listed(sample) {
  const { columns } = runOf(sample), row = rowOf(sample);
  const score = columns.score[row];
  return {
    id: columns.ids[row], question: word(columns.question[row]), gold: word(columns.gold[row]), answer: word(columns.answer[row]),
    kind: word(columns.kind[row]), score, isRight: score === null ? null : score >= 0.5, tokens: columns.tokens[row],
    exit: EXIT_NAMES[columns.exit[row]], effect: { h: "harm", r: "rescue" }[columns.effect[row]] ?? "",
  };
}

/** Load the calls of a run: its columns, and where the calls of each sample begin. */
async function loadCalls(number) {
  store.calls[number] ??= valueOf(`calls-${number}`).then((found) => {
    const starts = (lengths) => {
      const sums = new Int32Array(lengths.length + 1);
      lengths.forEach((length, i) => { sums[i + 1] = sums[i] + length; });
      return sums;
    };
    return { ...found, callStarts: starts(found.calls), verificationStarts: starts(found.verifications) };
  });
  return store.calls[number];
}

async function loadChunk(number) {
  store.chunks[number] ??= valueOf(`texts-${number}`);
  return store.chunks[number];
}

/** Return the text of a call. */
async function callText(number) {
  let chunk = store.firsts.length - 1;
  while (store.firsts[chunk] > number) chunk--;
  return (await loadChunk(chunk))[number - store.firsts[chunk]];
}

/** Return the calls and the verifications of a sample. */
async function details(sample) {
  const calls = await loadCalls(Math.floor(sample / SPAN)), row = rowOf(sample);
  const found = [];
  for (let i = calls.callStarts[row]; i < calls.callStarts[row + 1]; i++) {
    const [side, stage, mark] = calls.marks.slice(3 * i, 3 * i + 3);
    found.push({ side, stage, cutOff: mark === "c", shared: mark === "s", text: await callText(calls.text[i]), tokens: calls.tokens[i], ms: calls.ms[i] });
  }
  const verifications = [];
  for (let i = calls.verificationStarts[row]; i < calls.verificationStarts[row + 1]; i++) {
    verifications.push({ small: word(calls.small[i]), large: word(calls.large[i]), agree: calls.agree[i] === "y" });
  }
  return { calls: found, verifications };
}

/** Return the sample of each run that has this document of the benchmark, with the same gold answer. */
function sameDocument(sample) {
  const { benchmark } = runOf(sample), { id, gold } = listed(sample);
  const found = [];
  store.runs.forEach((run, number) => {
    const row = run.benchmark === benchmark ? rowOfDocument(run, id) : -1;
    if (row >= 0 && word(run.columns.gold[row]) === gold) found.push(number * SPAN + row);
  });
  return found;
}

/** Return the row of a document, or -1. The numbers of the documents are sorted. */
function rowOfDocument(run, id) {
  const { ids } = run.columns;
  let low = 0, high = ids.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (ids[middle] === id) return middle;
    if (ids[middle] < id) low = middle + 1; else high = middle - 1;
  }
  return -1;
}

const keyOf = (sample) => `${runOf(sample).key}:${listed(sample).id}`;

/** Return the sample of a link, or null. */
function sampleOfKey(key) {
  const end = key.lastIndexOf(":");
  const number = store.runs.findIndex((run) => run.key === key.slice(0, end));
  const row = number < 0 ? -1 : rowOfDocument(store.runs[number], Number(key.slice(end + 1)));
  return row < 0 ? null : number * SPAN + row;
}

/** Return 1 for each text that contains the searched one. */
const matches = (texts, searched) => Uint8Array.from(texts, (text) => (text.includes(searched) ? 1 : 0));

/** Return a function that tells whether a row of a run has the searched text: in its question, answers or calls. */
async function searcher(searched) {
  store.small.words ??= store.words.map((text) => text.toLowerCase());
  const inWords = matches(store.small.words, searched);
  const inTexts = [];
  for (let i = 0; i < store.firsts.length; i++) {
    store.small.chunks[i] ??= (await loadChunk(i)).map((text) => text.toLowerCase());
    inTexts.push(...[matches(store.small.chunks[i], searched)]);
  }
  const all = new Uint8Array(inTexts.reduce((sum, one) => sum + one.length, 0));
  inTexts.forEach((one, i) => all.set(one, store.firsts[i]));
  return (columns, calls, row) => {
    if (inWords[columns.question[row]] || inWords[columns.gold[row]] || inWords[columns.answer[row]]) return true;
    for (let i = calls.callStarts[row]; i < calls.callStarts[row + 1]; i++) if (all[calls.text[i]]) return true;
    return false;
  };
}

/** Return the samples that a filter leaves. `filter`: task, method, exit, answer, effect and q; empty means all. */
async function filtered(filter) {
  const searched = filter.q.trim().toLowerCase();
  const contains = searched ? await searcher(searched) : null;
  const exits = filter.exit === DISAGREE ? ["b", "t"] : Object.keys(EXIT_NAMES).filter((code) => EXIT_NAMES[code] === filter.exit);
  const effect = filter.effect && filter.effect[0];
  const found = [];
  for (const [number, run] of store.runs.entries()) {
    if ((filter.task && run.benchmark !== filter.task) || (filter.method && run.method !== filter.method)) continue;
    if (filter.exit === DISAGREE && run.mode !== "cascade") continue;
    const { columns } = run;
    const calls = contains ? await loadCalls(number) : null;
    for (let row = 0; row < columns.ids.length; row++) {
      if (filter.exit && !exits.includes(columns.exit[row])) continue;
      if (effect && columns.effect[row] !== effect) continue;
      const score = columns.score[row];
      if (filter.answer && (score === null || (score >= 0.5) !== (filter.answer === "right"))) continue;
      if (contains && !contains(columns, calls, row)) continue;
      found.push(number * SPAN + row);
    }
  }
  return found;
}
