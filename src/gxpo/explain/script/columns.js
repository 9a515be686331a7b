// Columns: decoding, and how rollouts, turns, tokens and nodes of a group hang together.
const overview = document.getElementById('steps'); // of a run's page; a step's page has one step without a number
const RUN = overview ? JSON.parse(overview.textContent) : {steps: [], curve: [], of: 0};
const hashStep = Number(new URLSearchParams(location.hash.slice(1)).get('step') ?? NaN);
const CHOSEN_STEP = RUN.steps.includes(hashStep) ? hashStep : RUN.steps[RUN.steps.length - 1];
for (const s of RUN.steps) document.getElementById('head-' + s).hidden = s !== CHOSEN_STEP;
const D = JSON.parse(document.getElementById(RUN.steps.length ? 'rollouts-' + CHOSEN_STEP : 'rollouts').textContent);
const KINDS = {u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array};
function typed(text, kind) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new KINDS[kind](bytes.buffer);
}
function col(x) { // a packed column as a function of the row
  if (!x) return null;
  if (!x.k) { const c = x.c === undefined ? NaN : Number(x.c); return () => c; }
  const values = typed(x.d, x.k);
  if (!x.v) return i => values[i];
  const distinct = typed(x.v, 'f8');
  return i => distinct[values[i]];
}
const isColumn = x => x !== null && typeof x === "object" && (typeof x.d === "string" || typeof x.c === "number" || typeof x.c === "boolean");
const decoded = t => { const out = {}; for (const k in t) out[k] = isColumn(t[k]) ? col(t[k]) : t[k]; return out; };
const R = decoded(D.R), S = decoded(D.S), N = decoded(D.N), T = decoded(D.T);
if (!T.path) T.path = p => p; // every token is some rollout's, in order
const G = decoded(D.groups);
R.components = Object.entries(R.components).map(([name, x]) => ({name, at: col(x)}));
for (const name in G.zero_signal) G.zero_signal[name] = col(G.zero_signal[name]);
G.disagreement = G.disagreement.map(x => ({of: x.of, at: col(x)}));
const nR = D.R.id.length, nG = D.groups.name.length;
const members = Array.from({length: nG}, () => []); // rollouts of each group
const place = new Int32Array(nR); // of a rollout in its group
for (let r = 0; r < nR; r++) { place[r] = members[R.group(r)].length; members[R.group(r)].push(r); }
const B = D.beside || null; // rollouts of another run on the groups' tasks
const rname = r => 'r' + place[r];
const steps = r => { const out = []; for (let s = R.step(r); s < R.step(r + 1); s++) out.push(s); return out; };
const entries = s => { const out = []; for (let p = S.entry(s); p < S.entry(s + 1); p++) out.push(p); return out; };
const turnName = s => rname(S.rollout(s)) + (steps(S.rollout(s)).length > 1 ? ' turn ' + S.turn(s) : '');
const word = p => D.words[T.word(T.path(p))];
const several = D.agents.length > 1;

// Characters that would not be seen, or that turn the direction of writing, by name.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const seen = t => String(t).replace(UNSEEN, c => { const n = c.charCodeAt(0);
  return n < 32 ? String.fromCharCode(0x2400 + n) : '<U+' + n.toString(16).toUpperCase().padStart(4, '0') + '>'; });

// Methods: a token's value is read on the axis on which it is constant.
const onAxis = (c, r, s, p) => c.at(c.axis === 'R' ? r : c.axis === 'S' ? s : p);
const axisColumn = x => x ? {axis: x.a, at: col(x)} : null;
const M = D.methods.map(m => {
  const out = {...m, outcome: m.outcome ? col(m.outcome) : null};
  for (const k of ['credit', 'weight', 'share', 'pull', 'kept']) out[k] = axisColumn(m[k]);
  const calls = list => (list || []).map(c => ({...c, rows: c.rows.map(v => ({...v, value: axisColumn(v.value)}))}));
  out.calls = {weight: calls((m.calls || {}).weight), loss: calls((m.calls || {}).loss)};
  out.summands = (m.summands || []).map(s => ({...s, value: axisColumn(s.value), calls: calls(s.calls), compared: s.compared && {...decoded(s.compared)}}));
  return out;
});
const ofToken = (m, name, s, p) => m[name] ? onAxis(m[name], S.rollout(s), s, p) : NaN;
function meanOver(m, name, list) { // mean over trained tokens of steps
  let sum = 0, n = 0;
  for (const s of list) for (let p = S.entry(s); p < S.entry(s + 1); p++) if (T.trained(T.path(p))) { sum += ofToken(m, name, s, p); n++; }
  return n ? sum / n : NaN;
}
const advantageOf = (m, r) => m.credit ? (m.credit.axis === 'R' ? m.credit.at(r) : meanOver(m, 'credit', steps(r))) : NaN;
const rewardOf = (m, r) => m && m.outcome ? m.outcome(r) : R.reward(r);

// Numbers: at most `digits` significant ones, as a calculator shows them.
function num(x, digits = 8) {
  if (x === null || x === undefined || Number.isNaN(x)) return 'unknown';
  if (!Number.isFinite(x)) return x > 0 ? 'infinite' : '-infinite';
  if (x === 0) return '0';
  const a = Math.abs(x);
  if (a >= 1e-5 && a < 1e9) return String(Number(x.toPrecision(digits)));
  return Number(x.toPrecision(digits)).toExponential();
}
const signed = (x, digits = 3) => Number.isNaN(x) ? 'none' : (x > 0 ? '+' : '') + (x === 0 ? '0' : Math.abs(x) >= 1e-3 && Math.abs(x) < 1e5 ? x.toFixed(Math.max(0, digits - Math.max(0, Math.floor(Math.log10(Math.abs(x)))))) : x.toExponential(1));
const bracket = x => x < 0 ? '(' + num(x) + ')' : num(x);
