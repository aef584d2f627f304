// The samples: columns by run, the texts of the calls, filters and search. A sample is a number: run * SPAN + row.

const SPAN = 2 ** 24;
const DISAGREE = "disagree"; // as an exit: those of a cascade whose short answers do not agree
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
    exit: columns.exit[row], effect: columns.effect[row],
  };
}

// Loaded once: the calls of a run, in columns by document, and a chunk of texts.
const loadCalls = (number) => (store.calls[number] ??= valueOf(`calls-${number}`));
const loadChunk = (number) => (store.chunks[number] ??= valueOf(`texts-${number}`));

/** Return the text of a call. */
async function callText(number) {
  let chunk = store.firsts.length - 1;
  while (store.firsts[chunk] > number) chunk--;
  return (await loadChunk(chunk))[number - store.firsts[chunk]];
}

/** Return the calls and the verifications of a sample. */
async function details(sample) {
  const columns = await loadCalls(Math.floor(sample / SPAN)), row = rowOf(sample);
  const of = (name) => columns[name][row];
  const texts = await Promise.all(of("text").map(callText)), verified = of("verifications");
  const calls = texts.map((text, i) => {
    const [side, stage, mark] = of("marks").slice(3 * i, 3 * i + 3);
    return { text, stage, side: side === "s" ? "small" : "large", cutOff: mark === "c", shared: mark === "s", tokens: of("call_tokens")[i], ms: of("ms")[i] };
  });
  const verifications = [];
  for (let i = 0; i < verified.length; i += 3) verifications.push({ small: word(verified[i]), large: word(verified[i + 1]), agree: verified[i + 2] === 1 });
  return { calls, verifications };
}

/** Return the sample of each run that has this document of the benchmark, with the same gold answer. */
function sameDocument(sample) {
  const { benchmark } = runOf(sample), { id, gold } = listed(sample);
  const found = [];
  store.runs.forEach((run, number) => {
    const row = run.benchmark === benchmark ? run.columns.ids.indexOf(id) : -1;
    if (row >= 0 && word(run.columns.gold[row]) === gold) found.push(number * SPAN + row);
  });
  return found;
}

const keyOf = (sample) => `${runOf(sample).key}:${listed(sample).id}`;

/** Return the sample of a link, or null. */
function sampleOfKey(key) {
  const end = key.lastIndexOf(":");
  const number = store.runs.findIndex((run) => run.key === key.slice(0, end));
  const row = number < 0 ? -1 : store.runs[number].columns.ids.indexOf(Number(key.slice(end + 1)));
  return row < 0 ? null : number * SPAN + row;
}

/** Return a function that tells whether a row of a run has the searched text: in its question, answers or calls. */
async function searcher(searched) {
  store.small.words ??= store.words.map((text) => text.toLowerCase());
  const inWords = store.small.words.map((text) => text.includes(searched));
  const inTexts = [];
  for (let i = 0; i < store.firsts.length; i++) {
    store.small.chunks[i] ??= (await loadChunk(i)).map((text) => text.toLowerCase());
    for (const text of store.small.chunks[i]) inTexts.push(text.includes(searched));
  }
  return (columns, calls, row) => {
    if (inWords[columns.question[row]] || inWords[columns.gold[row]] || inWords[columns.answer[row]]) return true;
    return calls.text[row].some((text) => inTexts[text]);
  };
}

/** Return the samples that a filter leaves. `filter`: task, method, exit, answer, effect and q; empty means all. */
async function filtered(filter) {
  const searched = filter.q.trim().toLowerCase();
  const contains = searched ? await searcher(searched) : null;
  const exits = filter.exit === DISAGREE ? ["agree_think", "transfer"] : [filter.exit];
  const found = [];
  for (const [number, run] of store.runs.entries()) {
    if ((filter.task && run.benchmark !== filter.task) || (filter.method && run.method !== filter.method)) continue;
    if (filter.exit === DISAGREE && run.mode !== "cascade") continue;
    const { columns } = run;
    const calls = contains ? await loadCalls(number) : null;
    for (let row = 0; row < columns.ids.length; row++) {
      if (filter.exit && !exits.includes(columns.exit[row])) continue;
      if (filter.effect && columns.effect[row] !== filter.effect) continue;
      const score = columns.score[row];
      if (filter.answer && (score === null || (score >= 0.5) !== (filter.answer === "right"))) continue;
      if (contains && !contains(columns, calls, row)) continue;
      found.push(number * SPAN + row);
    }
  }
  return found;
}
