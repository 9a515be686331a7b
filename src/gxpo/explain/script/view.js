// The view: list of groups, the chosen group, the panel with the arithmetic; keys; what is chosen stands in the address.
const $ = id => document.getElementById(id);
const el = (name, attrs, ...kids) => {
  const e = document.createElement(name);
  for (const k in attrs || {}) if (k === 'on') for (const t in attrs.on) e.addEventListener(t, attrs.on[t]); else if (attrs[k] !== null && attrs[k] !== undefined && attrs[k] !== false) e.setAttribute(k, attrs[k] === true ? '' : attrs[k]);
  for (const kid of kids.flat(Infinity)) if (kid !== null && kid !== undefined) e.append(typeof kid === 'object' ? kid : seen(kid));
  return e;
};
const COLOURS = ['advantage', 'weight', 'gradient', 'log-prob', 'order'].filter(c => c !== 'order' || D.T.unmasked);
const state = {g: 0, r: -1, s: -1, p: -1, m: Math.max(0, M.findIndex(x => x.credit)), colour: 'advantage', sort: 'file', filter: 'all', numbers: false, beside: M.length > 1, all: false, query: ''};
let shown = [];
const plural = (n, noun) => `${n} ${noun}${n === 1 ? '' : 's'}`;

// ---- colours
const largest = new Map();
function scaleOf(m, name) {
  if (!m || !m[name]) return 0;
  const key = m.name + '/' + name;
  if (!largest.has(key)) {
    let top = 0;
    const n = m[name].axis === 'R' ? nR : m[name].axis === 'S' ? R.step(nR) : S.entry(R.step(nR));
    for (let i = 0; i < n; i++) { const x = Math.abs(m[name].at(i)); if (x > top) top = x; }
    largest.set(key, top);
  }
  return largest.get(key);
}
const shade = (x, top) => !(top > 0) || Number.isNaN(x) || x === 0 ? 'd0' : 'd' + (x < 0 ? '-' : '') + Math.max(1, Math.ceil(5 * Math.min(1, Math.abs(x) / top)));
const size = (x, top) => !(top > 0) || Number.isNaN(x) ? 'q0' : 'q' + Math.round(5 * Math.min(1, x / top));
const unmasked = p => T.unmasked ? T.unmasked(T.path(p)) : -1; // step of a masked model's decoder, from 0
const logprob = p => T.logprob ? T.logprob(T.path(p)) : NaN;
function look(m, s, p) { // [value, class] of a token
  if (!T.trained(T.path(p))) return [NaN, 'still'];
  if (state.colour === 'order') { const k = unmasked(p); return k < 0 ? [NaN, ''] : [k + 1, size(k + 1, 20)]; }
  if (state.colour === 'log-prob') { const x = logprob(p); return [x, size(-x, 5)]; }
  const name = {advantage: 'credit', weight: 'weight', gradient: 'pull'}[state.colour];
  if (!m[name]) return [NaN, ''];
  const x = ofToken(m, name, s, p), top = scaleOf(m, name);
  if (name === 'weight') return [x, size(x, top)];
  const kept = name === 'pull' && m.kept ? ofToken(m, 'kept', s, p) : 1;
  return [x, shade(x, top) + (kept === 0 ? ' cut' : kept < 1 - 1e-6 || kept > 1 + 1e-6 ? ' bent' : '')];
}

const byState = M.some(m => m.summands.some(k => k.compared ? k.compared.among.includes('state') : /state|graph/.test(k.name)));
const returns = M.flatMap(m => m.summands).map(k => k.compared).find(c => c && c.axis === 'S' && c.what.startsWith('return'));

// ---- the list of groups
const ORDERS = {file: () => 0, 'zero-signal': g => -zeroSignalCount(g), spread: g => -(G.high(g) - G.low(g) || 0)};
for (const d of G.disagreement) ORDERS['differs: ' + d.of.join(' and ')] = g => -d.at(g);
const anyResidue = Array.from({length: nG}, (_, g) => G.residue(g)).some(x => x > 0);
const there = g => B && B.count[g] ? B.mean[g] : null; // mean reward of the other run on the task
const gap = g => there(g) === null || Number.isNaN(G.mean(g)) ? NaN : G.mean(g) - there(g);
if (B) Object.assign(ORDERS, {'better than beside': g => -gap(g) || 0, 'worse than beside': g => gap(g) || 0});
if (anyResidue) ORDERS.residue = g => -G.residue(g);
const FILTERS = {all: () => true, 'with signal': g => zeroSignalCount(g) === 0, 'zero-signal': g => zeroSignalCount(g) > 0};
if (anyResidue) FILTERS.residue = g => G.residue(g) > 0;
function zeroSignalCount(g) { let n = 0; for (const name in G.zero_signal) if (G.zero_signal[name](g)) n++; return n; }
const LINE = 46;
const texts = new Map(); // of a group: its prompt and all its tokens
function textOf(g) {
  if (!texts.has(g)) {
    const prompt = R.prompt(members[g][0]);
    texts.set(g, [prompt >= 0 ? D.texts[prompt] : '', ...members[g].map(r => steps(r).flatMap(entries).map(word).join(''))].join('\n').toLowerCase());
  }
  return texts.get(g);
}
function arrange() {
  const key = ORDERS[state.sort] || ORDERS.file, query = state.query.toLowerCase();
  shown = Array.from({length: nG}, (_, g) => g).filter(FILTERS[state.filter] || FILTERS.all).filter(g => !query || textOf(g).includes(query));
  const keys = new Map(shown.map(g => [g, key(g)]));
  shown.sort((a, b) => keys.get(a) - keys.get(b) || a - b);
  const box = $('groups');
  box.replaceChildren(el('div', {class: 'all', style: `height:${LINE * shown.length}px`}));
  if (!shown.length) box.append(el('p', {class: 'soft'}, query ? 'no text has ' + state.query : 'no group is ' + state.filter));
  if (!shown.includes(state.g) && shown.length) choose({g: shown[0]});
  lines();
}
function badge(g) {
  if (Number.isNaN(G.high(g))) return 'unscored';
  if (G.high(g) - G.low(g) <= 1e-12 * Math.max(Math.abs(G.high(g)), Math.abs(G.low(g)))) return 'all equal ' + num(G.low(g), 4);
  return num(G.low(g), 3) + ' to ' + num(G.high(g), 3);
}
function lines() {
  const box = $('groups'), all = box.querySelector('.all');
  if (!all) return;
  const from = Math.max(0, Math.floor(box.scrollTop / LINE) - 4), to = Math.min(shown.length, from + Math.ceil(box.clientHeight / LINE) + 10);
  all.replaceChildren();
  for (let i = from; i < to; i++) {
    const g = shown[i], zeroSignal = Object.keys(G.zero_signal).filter(n => G.zero_signal[n](g));
    const strip = el('span', {class: 'strip', 'aria-hidden': 'true'}, members[g].slice(0, 24).map(r => el('i', {class: shade(advantageOf(M[state.m] || {}, r), scaleOf(M[state.m], 'credit'))})));
    all.append(el('div', {
      class: 'line', id: 'line' + g, role: 'option', 'aria-selected': g === state.g ? 'true' : 'false', 'aria-setsize': shown.length, 'aria-posinset': i + 1, style: `top:${LINE * i}px`,
      on: {click: () => choose({g})},
    }, el('div', {class: 'name'}, G.task[g]), el('div', {class: 'soft'}, strip, ' ', badge(g),
      zeroSignal.length && !(G.residue(g) > 0) ? ' \u00b7 zero-signal' + (Object.keys(G.zero_signal).length > zeroSignal.length ? ' under ' + zeroSignal.join(', ') : '') : '',
      G.residue(g) > 0 ? ' \u00b7 residue' : '', B ? ' \u00b7 beside ' + (there(g) === null ? 'none' : num(there(g), 3)) : '')));
  }
  if (shown.includes(state.g)) box.setAttribute('aria-activedescendant', 'line' + state.g);
}
function reveal() {
  const box = $('groups'), i = shown.indexOf(state.g);
  if (i < 0) return;
  if (i * LINE < box.scrollTop) box.scrollTop = i * LINE;
  else if ((i + 1) * LINE > box.scrollTop + box.clientHeight) box.scrollTop = (i + 1) * LINE - box.clientHeight;
  lines();
}

// ---- the chosen group
const ROLLOUTS = 64, TOKENS = 1500; // drawn before "all" is asked for
function drawGroup() {
  const g = state.g, box = $('group');
  if (!nG) { box.replaceChildren(el('p', {}, 'No rollouts.')); return; }
  const list = members[g], m = M[state.m];
  const head = [el('h2', {}, G.task[g], !G.name[g].endsWith(G.task[g]) ? el('span', {class: 'soft'}, '  group ' + G.name[g]) : null)];
  const zeroSignal = Object.keys(G.zero_signal).filter(n => G.zero_signal[n](g));
  const facts = [plural(list.length, 'rollout'), 'rewards ' + badge(g)];
  if (zeroSignal.length) facts.push('zero-signal under ' + zeroSignal.join(', '));
  for (const d of G.disagreement) facts.push(`${d.of.join(' and ')} differ by ${num(d.at(g), 3)}`);
  head.push(el('p', {class: 'facts'}, facts.map(f => el('span', {}, f))));
  if (G.residue(g) > 0) head.push(el('p', {class: 'flag'}, `Residue: the rewards are equal, so nothing is to be learned, but the trainer recorded advantages up to ${num(G.residue(g), 3)}; they are rounding, not signal.`));
  const prompt = R.prompt(list[0]);
  if (prompt >= 0) head.push(el('details', {open: D.texts[prompt].length < 400}, el('summary', {}, 'Prompt'), el('pre', {class: 'boxed', dir: 'auto'}, pictured(D.texts[prompt]))));
  const many = list.length > ROLLOUTS && !state.all;
  const parts = [head, table(g, m), el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Tree of the group'}, drawTree(g, m && m.credit ? m : M.find(x => x.credit) || {}, {r: state.r}, (r, s) => choose({r, s, p: S.entry(s)})))];
  parts.push(el('div', {class: 'rollouts'}, (many ? list.slice(0, ROLLOUTS) : list).map(rollout)));
  parts.splice(parts.length - 1, 0, besideGroup(g));
  if (many || list.some(r => R.step(r + 1) > R.step(r) && S.entry(R.step(r + 1)) - S.entry(R.step(r)) > TOKENS && !state.all)) parts.push(el('button', {on: {click: () => { state.all = true; drawGroup(); }}}, 'Show all rollouts and tokens'));
  box.replaceChildren(...parts.flat());
}
function besideGroup(g) { // rollouts of the other run or checkpoint on this task
  if (!B) return [];
  const of = `${B.title} (${B.file})`;
  if (!B.count[g]) return el('p', {class: 'flag'}, `No rollout of this task in ${of}.`);
  const list = B.rollouts[g], summary = `${of}: ${plural(B.count[g], 'rollout')}, mean reward ${there(g) === null ? 'unknown' : num(there(g), 4)}` + (Number.isNaN(gap(g)) ? '' : `; here ${num(G.mean(g), 4)}, ${signed(gap(g))}`);
  return el('details', {open: true, class: 'there'}, el('summary', {}, summary), list.length < B.count[g] ? el('p', {class: 'soft'}, `${list.length} of them, from the best to the worst`) : null,
    list.map(x => el('div', {class: 'turn'}, el('p', {class: 'facts'}, el('span', {}, 'reward ' + (x.reward === null ? 'unscored' : num(x.reward, 5)))), x.made ? el('p', {class: 'made'}, pictured(x.made)) : null, el('div', {class: 'text', dir: 'auto'}, plain(x.text)))));
}
function pictured(text) { // a text with the pictures that it names
  return text.split(/(<image [0-9a-f]{8}>)/).map(x => D.pictures[x] ? el('img', {class: 'shown', src: D.pictures[x], alt: x, title: x}) : x);
}
const tone = (x, top, said) => el('span', {class: 'chip ' + shade(x, top)}, said === undefined ? signed(x) : said);
function table(g, m) { // rewards and advantages of the methods side by side
  const recorded = members[g].some(r => !Number.isNaN(R.recorded(r)));
  const head = el('tr', {}, ['rollout', 'reward', ...R.components.filter(() => R.components.length > 1).map(c => c.name)].map((x, i) => el('th', {scope: 'col', class: i ? 'n' : null}, x)),
    M.map((x, i) => el('th', {scope: 'col', class: 'n' + (i === state.m ? ' now' : '')}, x.name)),
    recorded ? [el('th', {scope: 'col', class: 'n'}, 'recorded'), el('th', {scope: 'col', class: 'n'}, 'difference')] : null);
  const first = M.find(x => x.credit);
  const rows = members[g].slice(0, state.all ? undefined : ROLLOUTS).map((r, at) => el('tr', {class: r === state.r ? 'on' : null, on: {click: () => choose({r, s: R.step(r), p: S.entry(R.step(r))})}},
    el('th', {scope: 'row'}, rname(r), R.cut(r) ? el('span', {class: 'soft'}, ' cut') : null, R.origin && R.origin[r] !== 'policy' ? el('span', {class: 'soft'}, ' ' + R.origin[r]) : null, R.compared(r) ? null : el('span', {class: 'soft'}, ' not compared')),
    el('td', {class: 'n'}, Number.isNaN(R.reward(r)) ? 'unscored' : num(R.reward(r), 5)),
    R.components.length > 1 ? R.components.map(c => el('td', {class: 'n'}, Number.isNaN(c.at(r)) ? 'none' : num(c.at(r), 4))) : null,
    M.map(x => x.missing ? (at ? null : el('td', {class: 'n soft why', rowspan: members[g].length}, x.missing)) : el('td', {class: 'n'}, tone(advantageOf(x, r), scaleOf(x, 'credit')))),
    recorded ? [el('td', {class: 'n'}, Number.isNaN(R.recorded(r)) ? 'none' : signed(R.recorded(r))), el('td', {class: 'n'}, difference(first, r))] : null));
  return el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Rewards and advantages'}, el('table', {class: 'sums'}, el('thead', {}, head), el('tbody', {}, rows)));
}
function difference(m, r) {
  const d = m ? R.recorded(r) - advantageOf(m, r) : NaN;
  return Number.isNaN(d) ? 'none' : Math.abs(d) < 5e-7 ? '0' : signed(d);
}
function rollout(r) {
  const turns = steps(r), m = M[state.m];
  const beside = state.beside && M.filter(x => x.credit).length > 1 ? M.filter(x => x.credit) : [m].filter(x => x);
  let budget = state.all ? Infinity : TOKENS;
  const blocks = [], multi = members[state.g].some(q => steps(q).length > 1);
  for (const s of turns) {
    const list = entries(s);
    if (budget <= 0) { blocks.push(el('p', {class: 'soft'}, `and ${turns.length - blocks.length} more turns`)); break; }
    const seenText = S.seen(s) >= 0 && (S.turn(s) > 0 || S.seen(s) !== R.prompt(r)) ? D.texts[S.seen(s)] : null;
    const facts = [];
    if (several || multi) facts.push((several ? D.agents[S.agent(s)] + ', ' : '') + 'turn ' + S.turn(s));
    if (S.caller(s) >= 0) facts.push('called in turn ' + S.caller(s));
    if (!Number.isNaN(S.reward(s)) && multi) facts.push('paid ' + num(S.reward(s), 4));
    if (byState && S.state(s) >= 0 && multi) {
      const same = members[state.g].flatMap(steps).filter(q => S.state(q) === S.state(s) && q !== s);
      facts.push(same.length ? 'state met also by ' + same.slice(0, 6).map(turnName).join(', ') + (same.length > 6 ? ' and ' + (same.length - 6) + ' more' : '') : 'state met once');
    }
    if (returns && multi && !Number.isNaN(returns.x(s))) facts.push('return ' + num(returns.x(s), 4));
    if (turns.length > 1) for (const x of beside) facts.push((beside.length > 1 ? x.name + ' ' : 'advantage ') + signed(meanOver(x, 'credit', [s])));
    if (S.finish(s) >= 0 && D.S.finishes[S.finish(s)] === 'length') facts.push('cut');
    blocks.push(el('div', {class: 'turn' + (s === state.s && r === state.r ? ' on' : '')},
      facts.length ? el('p', {class: 'facts'}, facts.map(f => el('span', {}, f))) : null,
      seenText ? el('pre', {class: 'seen', dir: 'auto'}, pictured(seenText)) : null,
      el('div', {class: 'beside', style: `--n:${beside.length}`}, beside.map(x => el('div', {class: 'text', role: 'group', 'aria-label': `tokens of ${turnName(s)} under ${x.name}`, dir: 'auto'},
        beside.length > 1 ? el('span', {class: 'of'}, x.name) : null, list.slice(0, budget).map((p, i) => [token(x, r, s, p), patchGap(p, i)]), list.length > budget ? el('span', {class: 'soft'}, ` and ${list.length - budget} more tokens`) : null)))));
    budget -= list.length;
  }
  return el('section', {class: 'rollout' + (r === state.r ? ' on' : ''), id: 'r' + r},
    el('h3', {on: {click: () => choose({r, s: R.step(r), p: S.entry(R.step(r))})}}, rname(r), el('span', {class: 'soft'}, '  reward ' + (Number.isNaN(R.reward(r)) ? 'unscored' : num(R.reward(r), 5))), ' ',
      beside.map(x => [beside.length > 1 ? el('span', {class: 'soft'}, ' ' + x.name + ' ') : ' ', tone(advantageOf(x, r), scaleOf(x, 'credit'))])), R.made[r] ? el('p', {class: 'made'}, pictured(R.made[r])) : null, blocks);
}
const patchGap = (p, i) => !D.side ? null : (i + 1) % D.side ? ' '.repeat(Math.max(1, 4 - word(p).length)) : '\n'; // patches of a picture stand as they do in it
function token(m, r, s, p) {
  const [x, shadeOf] = look(m, s, p), said = word(p);
  const kids = state.numbers && !Number.isNaN(x) ? [el('span', {}, plain(said)), el('small', {}, signed(x, 2))] : [plain(said)];
  return el('span', {class: 'tok ' + shadeOf + (state.numbers ? ' numbered' : '') + (p === state.p && r === state.r ? ' on' : ''), 'data-p': p, title: `${state.colour} ${signed(x)}`, on: {click: e => { e.stopPropagation(); choose({r, s, p, m: M.indexOf(m)}); }}}, kids);
}
const plain = t => t.replace(/\n/g, '\u21b5\n').replace(/\t/g, '\u21e5\t') || '\u2205';

// ---- the panel
const blocksOf = list => list.map(b => [el('h4', {}, b.title), el('ol', {}, b.lines.map(t => el('li', {}, t)))]);
const fill = (box, ...kids) => box.replaceChildren(...kids.flat(Infinity).filter(k => k));
function why() {
  const box = $('why'), m = M[state.m];
  if (state.r < 0 || !nG) {
    $('said').textContent = nG ? seen(`group ${G.task[state.g]}, rewards ${badge(state.g)}`) : '';
    fill(box, el('h2', {}, 'How the numbers came about'), el('p', {class: 'soft'}, 'Of this group. Choose a rollout (arrow down) or a token (arrow right) for its own.'),
      M.filter(x => nG && x.credit).sort((a, b) => (b === m) - (a === m)).map(x => el('details', {open: true, class: 'method'}, el('summary', {}, x.name), x.formula ? el('p', {class: 'soft formula'}, x.formula) : null, blocksOf(ofGroup(x, state.g)))));
    return;
  }
  const {r, s, p} = state;
  const out = [el('h2', {}, `${turnName(s)}, token ${p - S.entry(s)} `, el('code', {}, plain(word(p))))];
  const facts = [];
  if (T.logprob && !Number.isNaN(logprob(p))) facts.push(`log-prob ${num(logprob(p), 4)}, probability ${num(Math.exp(logprob(p)), 3)}`);
  if (unmasked(p) >= 0) facts.push(`unmasked in step ${unmasked(p) + 1} of the decoder`);
  if (!Number.isNaN(R.recorded(r))) facts.push(`recorded advantage of ${rname(r)} ${num(R.recorded(r), 6)}`);
  if (facts.length) out.push(el('p', {class: 'facts'}, facts.map(f => el('span', {}, f))));
  if (byState && S.state(s) >= 0 && steps(r).length > 1 && D.states[S.state(s)].length < 600) out.push(el('details', {open: true}, el('summary', {}, 'State'), el('pre', {class: 'boxed', dir: 'auto'}, D.states[S.state(s)])));
  $('said').textContent = seen(`${turnName(s)}, token ${p - S.entry(s)}, ${word(p)}, ${M.filter(x => x.credit).map(x => x.name + ' ' + signed(ofToken(x, 'credit', s, p))).join(', ')}`);
  const order = [m, ...M.filter(x => x !== m)].filter(x => x);
  for (const x of order) {
    const body = x.missing ? [el('p', {class: 'soft'}, x.missing)] : [x.formula ? el('p', {class: 'soft formula'}, x.formula) : null, ...blocksOf(derivation(x, r, s, p))];
    if (!x.missing && x.curve.length && x === m) body.push(el('details', {}, el('summary', {}, 'What the surrogate keeps at other ratios'), el('p', {class: 'soft'}, x.surrogate), el('div', {class: 'scroll'}, el('table', {},
      el('thead', {}, el('tr', {}, ['ratio', 'advantage above 0', 'below 0'].map(t => el('th', {scope: 'col', class: 'n'}, t)))), el('tbody', {}, x.curve.map(c => el('tr', {}, c.map(v => el('td', {class: 'n'}, num(v, 3))))))))));
    out.push(el('details', {open: x === m || order.length < 4, class: 'method'}, el('summary', {}, x.name, x.credit ? [' ', tone(ofToken(x, 'credit', s, p), scaleOf(x, 'credit'))] : null), body));
  }
  box.replaceChildren(...out);
}

// ---- choosing, keys, address
let moved = false;
function choose(change) {
  moved = change.p !== undefined;
  const other = change.g !== undefined && change.g !== state.g;
  Object.assign(state, change);
  if (other) Object.assign(state, {r: -1, s: -1, p: -1, all: false}, change);
  draw();
  if (other) { reveal(); $('group').scrollTop = 0; }
}
function draw() { bar(); lines(); drawGroup(); why(); address(); const on = document.querySelector('.tok.on'); if (on && moved) within($('group'), on); moved = false; }
function within(box, e) { // scroll the box alone, not the page, unless the page is what scrolls
  const a = box.getBoundingClientRect(), b = e.getBoundingClientRect();
  if (box.scrollHeight <= box.clientHeight + 1) { if (b.top < 0 || b.bottom > innerHeight) e.scrollIntoView({block: 'center'}); }
  else if (b.top < a.top + 8 || b.bottom > a.bottom - 8) box.scrollTop += b.top - a.top - box.clientHeight / 2;
}
function address() {
  const q = new URLSearchParams({g: state.g, m: state.m, c: state.colour, sort: state.sort, filter: state.filter});
  if (state.r >= 0) { q.set('r', state.r); q.set('p', state.p); }
  if (RUN.steps.length) q.set('step', CHOSEN_STEP);
  if (state.query) q.set('q', state.query);
  try { history.replaceState(null, '', '#' + q); } catch (e) { /* a frame without an address */ }
}
function fromAddress() {
  const q = new URLSearchParams(location.hash.slice(1)), n = (k, max) => q.has(k) && Number(q.get(k)) >= 0 && Number(q.get(k)) < max ? Number(q.get(k)) : null;
  state.g = n('g', nG) ?? state.g; state.m = n('m', M.length) ?? state.m;
  if (COLOURS.includes(q.get('c'))) state.colour = q.get('c');
  if (Object.hasOwn(ORDERS, q.get('sort'))) state.sort = q.get('sort');
  if (Object.hasOwn(FILTERS, q.get('filter'))) state.filter = q.get('filter');
  const r = n('r', nR);
  if (r !== null && R.group(r) === state.g) {
    const p = n('p', S.entry(R.step(nR)));
    state.r = r; state.s = R.step(r); state.p = S.entry(state.s);
    for (const s of steps(r)) if (p !== null && p >= S.entry(s) && p < S.entry(s + 1)) { state.s = s; state.p = p; }
  }
  state.query = SEARCH.value = q.get('q') || '';
  if (!q.has('g') && !q.has('press')) chooseWidestGroup();
  return q.get('press') || '';
}
function chooseWidestGroup() { // what teaches: the group of the largest spread, or gap to the other run, and its largest advantage
  const spread = g => (B ? Math.abs(gap(g)) : G.high(g) - G.low(g)) || 0, m = M[state.m];
  for (let g = 0; g < nG; g++) if (spread(g) > spread(state.g)) state.g = g;
  if (!nG || !m || !m.credit || !spread(state.g)) return;
  const size = r => Math.abs(advantageOf(m, r)) || 0;
  state.r = members[state.g].reduce((best, r) => size(r) > size(best) ? r : best);
  state.s = R.step(state.r); state.p = S.entry(state.s);
}
const next = (list, at, d) => list[((list.indexOf(at) + d) % list.length + list.length) % list.length];
function moveGroup(d) { const i = shown.indexOf(state.g) + d; if (i >= 0 && i < shown.length) choose({g: shown[i]}); }
function moveRollout(d) {
  const list = members[state.g], i = state.r < 0 ? (d > 0 ? 0 : list.length - 1) : list.indexOf(state.r) + d;
  if (i < 0 || i >= list.length) return;
  const r = list[i];
  choose({r, s: R.step(r), p: S.entry(R.step(r))});
}
function moveToken(d) {
  if (state.r < 0) return moveRollout(1);
  const p = state.p + d, first = S.entry(R.step(state.r)), end = S.entry(R.step(state.r + 1));
  if (p < first || p >= end) return;
  choose({p, s: steps(state.r).find(s => p < S.entry(s + 1))});
}
const KEYS = {
  j: ['next group', () => moveGroup(1)], k: ['group before', () => moveGroup(-1)],
  ArrowDown: ['next rollout', () => moveRollout(1)], ArrowUp: ['rollout before', () => moveRollout(-1)],
  ArrowRight: ['next token', () => moveToken(1)], ArrowLeft: ['token before', () => moveToken(-1)],
  Enter: ['to the arithmetic', () => { if (state.r < 0) moveRollout(1); $('why').focus(); }],
  Escape: ['back to the groups', () => $('groups').focus()],
  m: ['next method', () => choose({m: next(M.map((_, i) => i), state.m, 1)})],
  c: ['next colouring', () => choose({colour: next(COLOURS, state.colour, 1)})],
  s: ['next order of groups', () => { state.sort = next(Object.keys(ORDERS), state.sort, 1); arrange(); draw(); }],
  f: ['next filter', () => { state.filter = next(Object.keys(FILTERS), state.filter, 1); arrange(); draw(); }],
  n: ['numbers under tokens', () => choose({numbers: !state.numbers})],
  b: ['methods side by side', () => choose({beside: !state.beside})],
  '?': ['these keys', help],
};
if (RUN.steps.length > 1) Object.assign(KEYS, {']': ['next step', () => nextStep(1)], '[': ['step before', () => nextStep(-1)]});
function help() {
  const box = $('help');
  if (box.open) { box.close(); return; }
  box.replaceChildren(el('h2', {}, 'Keys'), el('table', {}, el('tbody', {}, Object.entries(KEYS).map(([k, [what]]) => el('tr', {}, el('th', {scope: 'row'}, el('kbd', {}, k.replace('Arrow', 'arrow '))), el('td', {}, what))))), el('button', {on: {click: () => box.close()}}, 'Close'));
  box.showModal();
}
document.addEventListener('keydown', e => {
  if (e.ctrlKey || e.metaKey || e.altKey || !Object.hasOwn(KEYS, e.key)) return;
  const t = e.target.tagName;
  if (e.key.startsWith('Arrow') && e.target.closest && e.target.closest('.scroll, #why')) return; // they scroll
  if (t === 'SELECT' || t === 'INPUT' || (e.key === 'Enter' && (t === 'BUTTON' || t === 'SUMMARY')) || ($('help').open && e.key !== '?')) return;
  e.preventDefault();
  KEYS[e.key][1]();
});
function select(name, options, at, change) {
  return el('label', {}, name + ' ', el('select', {on: {change: e => { change(e.target.value); }}}, options.map(o => el('option', {value: o, selected: o === at}, o))));
}
const SEARCH = el('input', {type: 'search', placeholder: 'search in texts', 'aria-label': 'Search in texts', on: {input: e => { state.query = e.target.value; arrange(); address(); }}});
function goTo(step) { // another step's columns are decoded by loading the page again
  const q = new URLSearchParams({step, m: state.m, c: state.colour, sort: state.sort, filter: state.filter, q: state.query});
  location.hash = q;
  location.reload();
}
const nextStep = d => { const i = RUN.steps.indexOf(CHOSEN_STEP) + d; if (i >= 0 && i < RUN.steps.length) goTo(RUN.steps[i]); };
function curve() { // the reward over all steps; a dot for each step that has rollouts here
  const points = RUN.curve, W = 220, H = 34, svg = (name, attrs) => { const e = document.createElementNS('http://www.w3.org/2000/svg', name); for (const k in attrs) e.setAttribute(k, attrs[k]); return e; };
  if (points.length < 2) return null;
  const xs = points.map(p => p[0]), ys = points.map(p => p[1]), low = Math.min(...ys), span = Math.max(...ys) - low || 1;
  const x = v => 5 + (W - 10) * (v - xs[0]) / (xs[xs.length - 1] - xs[0] || 1), y = v => H - 5 - (H - 10) * (v - low) / span;
  const box = svg('svg', {width: W, height: H, class: 'curve', role: 'img', 'aria-label': 'mean reward from ' + num(ys[0], 3) + ' to ' + num(ys[ys.length - 1], 3)});
  box.append(svg('polyline', {points: points.map(p => x(p[0]) + ',' + y(p[1])).join(' ')}));
  for (const [step, reward] of points) if (RUN.steps.includes(step)) {
    const dot = svg('circle', {cx: x(step), cy: y(reward), r: step === CHOSEN_STEP ? 5 : 3.5, class: step === CHOSEN_STEP ? 'now' : ''}), title = svg('title', {});
    title.textContent = 'step ' + step + ': mean reward ' + num(reward, 3);
    dot.append(title);
    dot.addEventListener('click', () => goTo(step));
    box.append(dot);
  }
  return box;
}
function slider() {
  if (RUN.steps.length < 2) return null;
  const at = RUN.steps.indexOf(CHOSEN_STEP), shownOf = RUN.of > RUN.steps.length ? ` (${RUN.steps.length} of ${RUN.of} steps)` : '';
  return el('label', {}, 'step ', el('input', {type: 'range', min: 0, max: RUN.steps.length - 1, value: at, 'aria-valuetext': 'step ' + CHOSEN_STEP, on: {change: e => goTo(RUN.steps[e.target.value])}}), ` ${CHOSEN_STEP}${shownOf} `, curve());
}
function bar() {
  const typing = document.activeElement === SEARCH;
  const options = COLOURS.filter(c => c !== 'log-prob' || T.logprob);
  $('bar').replaceChildren(...[
    slider(),
    el('span', {role: 'group', 'aria-label': 'Method'}, M.map((x, i) => el('button', {'aria-pressed': i === state.m ? 'true' : 'false', title: x.formula, on: {click: () => choose({m: i})}}, x.name))),
    select('colour', options, state.colour, v => choose({colour: v})),
    select('order', Object.keys(ORDERS), state.sort, v => { state.sort = v; arrange(); draw(); }),
    select('groups', Object.keys(FILTERS), state.filter, v => { state.filter = v; arrange(); draw(); }),
    el('button', {'aria-pressed': state.numbers ? 'true' : 'false', on: {click: () => choose({numbers: !state.numbers})}}, 'numbers'),
    M.length > 1 ? el('button', {'aria-pressed': state.beside ? 'true' : 'false', on: {click: () => choose({beside: !state.beside})}}, 'side by side') : null,
    SEARCH, el('button', {'aria-label': 'Keys', on: {click: help}}, '?'), legend()].filter(x => x));
  if (typing) SEARCH.focus();
}
function legend() {
  const m = M[state.m], name = {advantage: 'credit', weight: 'weight', gradient: 'pull'}[state.colour];
  if (state.colour === 'log-prob') return el('span', {class: 'legend'}, el('span', {class: 'chip q0'}, '0'), el('span', {class: 'chip q5'}, '-5 or less'));
  const top = scaleOf(m, name);
  if (!top) return el('span', {class: 'legend soft'}, m && m.without && m.without[name === 'pull' ? 'surrogate' : name] || 'nothing to colour');
  if (name === 'weight') return el('span', {class: 'legend'}, el('span', {class: 'chip q0'}, '0'), el('span', {class: 'chip q5'}, num(top, 3)));
  return el('span', {class: 'legend'}, el('span', {class: 'chip d-5'}, signed(-top)), el('span', {class: 'chip'}, '0'), el('span', {class: 'chip d5'}, signed(top)));
}
$('groups').addEventListener('scroll', lines);
window.addEventListener('resize', lines);
const pressed = fromAddress();
arrange();
draw();
reveal();
const NAMED = {'>': 'ArrowRight', '<': 'ArrowLeft', v: 'ArrowDown', '^': 'ArrowUp', '!': 'Enter'};
for (const key of pressed) document.dispatchEvent(new KeyboardEvent('keydown', {key: NAMED[key] || key})); // for tests: #press=jv>>
