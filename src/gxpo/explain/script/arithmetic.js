// Arithmetic: how a rollout's, a turn's or a token's advantage came about, in lines for a calculator.
const MOST = 12; // members of a set that are written out
const INPUTS = 0, SHOWN = 1, EQUAL = 2, ALONE = 3, NO_SET = 4;

// Members of a row's set: {name, x, n, counted}; tokens of one rollout count n times.
function peersOf(c, row, g) {
  const set = c.set(row);
  if (set < 0) return [];
  const rows = [];
  for (const r of members[g]) {
    if (c.axis === 'R') rows.push([rname(r), r]);
    else for (const s of steps(r)) {
      if (c.axis === 'S') rows.push([turnName(s), s]);
      else for (let p = S.entry(s); p < S.entry(s + 1); p++) rows.push([rname(r), p]);
    }
  }
  const found = [];
  for (const [name, i] of rows) {
    if (c.set(i) !== set) continue;
    const x = c.x(i), counted = !!c.counted(i), last = found[found.length - 1];
    if (c.axis === 'P' && last && last.name === name && last.x === x && last.counted === counted) last.n++;
    else found.push({name, x, counted, n: 1});
  }
  return found;
}
const times = m => m.n > 1 ? m.n + ' \u00d7 ' + bracket(m.x) : bracket(m.x);
function pooled(list) { // equal members together
  const found = new Map();
  for (const m of list) found.set(m.x, {...m, n: m.n + (found.has(m.x) ? found.get(m.x).n : 0)});
  return [...found.values()];
}
const listed = (list, text, between) => list.length <= MOST ? list.map(text).join(between)
  : list.slice(0, MOST).map(text).join(between) + between + '... (' + (list.length - MOST) + ' more)';
const minus = (a, b) => num(a) + ' - ' + bracket(b);

function centreLine(c, row, peers, own) {
  const k = c.settings, v = c.center(row), shift = k.shift || 0, middle = v - shift;
  const counted = peers.filter(m => m.counted);
  const total = counted.reduce((n, m) => n + m.n, 0);
  const sum = list => '(' + listed(pooled(list), times, ' + ') + ') / ';
  const after = shift ? [`centre = ${num(middle)} + shift ${bracket(shift)} = ${num(v)}`] : [];
  switch (k.center) {
    case 'mean': return [`mean = ${sum(counted)}${total} = ${num(middle)}`, ...after];
    case 'leave_one_out': {
      const others = counted.map(m => m === own ? {...m, n: m.n - 1} : m).filter(m => m.n);
      return [others.length ? `mean of the others = ${sum(others)}${others.reduce((n, m) => n + m.n, 0)} = ${num(middle)}` : 'no others: 0', ...after];
    }
    case 'baseline': return [`baseline = ${num(v)}`];
    case 'none': return [`nothing is taken off${shift ? ' but the shift ' + num(shift) : ''}`];
    default: {
      const name = {median: 'median', lower_median: 'lower median', quantile: num(k.quantile) + '-quantile'}[k.center];
      const sorted = counted.flatMap(m => Array(Math.min(m.n, 99)).fill(m.x)).sort((a, b) => a - b);
      return [`${name} of ${listed(sorted, num, ', ')} = ${num(middle)}`, ...after];
    }
  }
}
function spreadLine(c, row, peers, own) {
  const k = c.settings, d = c.spread(row), middle = c.center(row) - (k.shift || 0);
  const counted = peers.filter(m => m.counted), total = counted.reduce((n, m) => n + m.n, 0);
  const eps = num(k.eps);
  const about = (list, m0) => listed(pooled(list), m => (m.n > 1 ? m.n + ' \u00d7 ' : '') + '(' + minus(m.x, m0) + ')^2', ' + ');
  const mean = counted.reduce((t, m) => t + m.n * m.x, 0) / (total || 1);
  switch (k.scale) {
    case 'std': return [`std = sqrt((${about(counted, mean)}) / (${total} - ${k.ddof})) = ${num(d - k.eps)}`];
    case 'leave_one_out_std': return [`std of the others, ddof ${k.ddof} = ${num(d - k.eps)}`];
    case 'batch_std': return [`std of all compared rewards of the step, ddof ${k.ddof} = ${num(d - k.eps)}`];
    case 'mean_absolute': return [`mean distance = (${listed(pooled(counted), m => (m.n > 1 ? m.n + ' \u00d7 ' : '') + '|' + minus(m.x, middle) + '|', ' + ')} + ${eps}) / ${total} = ${num(d)}`];
    case 'median_absolute': return [`median distance = ${num(d - k.eps)}`];
    case 'mean': return [`divisor = mean ${num(d - k.eps)}`];
    default: return [];
  }
}
const divisor = (k, d) => k.scale === 'none' ? '' : ' / ' + (k.scale === 'mean_absolute' ? num(d) : '(' + num(d - k.eps) + ' + ' + num(k.eps) + ')');

function returnLines(c, s) { // of a turn's discounted return
  const d = c.settings.discount, n = S.next(s), own = S.paid(s);
  if (n < 0 || !d) return [`return of ${turnName(s)} = its reward = ${num(c.x(s))}`];
  return [`return of ${turnName(s)} = ${num(own)} + ${num(d)} \u00d7 ${num((c.x(s) - own) / d)} (the return of turn ${S.turn(n)}) = ${num(c.x(s))}`];
}

// Lines of one summand for a rollout, a turn or a token; {lines, value}.
function summandLines(m, k, r, s, p) {
  const c = k.compared, g = R.group(r);
  if (!c) return {lines: inputLines(m, k, r, s, p), value: k.value ? onAxis(k.value, r, s, p) : NaN};
  const row = c.axis === 'R' ? r : c.axis === 'S' ? s : p;
  const status = c.status(row), w = c.settings.weight, out = [];
  const what = c.what === 'outcome' ? 'reward' : c.what.replace('reward.', 'reward ');
  const peers = peersOf(c, row, g), name = c.axis === 'S' ? turnName(s) : rname(r), x = c.x(row);
  const own = peers.find(q => q.name === name && q.x === x);
  out.push(`${what} among ${c.among}${c.among.includes('state') && S.state(s) >= 0 ? ' as ' + turnName(s) : ''}:`);
  if (status === NO_SET) { out.push(c.among.includes('state') ? 'in no known state: 0' : 'compared with none: 0'); return {lines: out, value: c.result(row)}; }
  if (peers.length && c.among !== 'the whole batch') out.push(peers.length > 1 && status === EQUAL ? `all ${peers.length}: ${num(x)}` : listed(peers, q => q.name + (q.n > 1 ? ' (' + q.n + ' tokens): ' : ': ') + num(q.x) + (q.counted ? '' : ' (not counted)'), ', '));
  if (c.axis === 'S' && c.what.startsWith('return')) out.push(...returnLines(c, s));
  if (status === EQUAL) out.push('all equal: 0');
  else if (status === ALONE) out.push('no other to compare with: 0');
  else if (status === INPUTS) out.push(`its formula: ${k.formula}`, `value: ${num(onAxis(k.value, r, s, p))}`);
  else {
    const batch = c.among === 'the whole batch';
    if (batch) out.push(`centre of all rows of the step (${c.settings.center}) = ${num(c.center(row))}`);
    else out.push(...centreLine(c, row, peers, own));
    if (!batch) out.push(...spreadLine(c, row, peers, own));
    const top = c.settings.center === 'none' && !c.settings.shift ? num(x) : `(${minus(x, c.center(row))})`;
    const bound = c.settings.bound ? `, held within +-${num(c.settings.bound)}` : '';
    out.push(`${w === 1 ? '' : num(w) + ' \u00d7 '}${top}${divisor(c.settings, c.spread(row))}${bound} = ${num(c.result(row))}`);
  }
  return {lines: out, value: status === SHOWN ? c.result(row) : status === INPUTS ? onAxis(k.value, r, s, p) : 0};
}
// A user's function: what went in, its variables in the order of its code, what came out.
function callLines(calls, r, s, p) {
  const out = [];
  for (const call of calls) {
    const columns = call.rows.filter(v => v.value);
    if (columns.length && columns.every(v => v.value.axis === 'P' && Number.isNaN(v.value.at(p)))) { out.push(call.title + ': not called with this token'); continue; }
    out.push(call.title);
    for (const {name, role, value, text} of call.rows) {
      const shown = !value ? text
        : value.axis === 'R' ? listed(members[R.group(r)], q => rname(q) + ': ' + num(value.at(q)), ', ')
        : value.axis === 'S' ? listed(steps(r), q => turnName(q) + ': ' + num(value.at(q)), ', ')
        : `${num(value.at(p))} (${turnName(s)}, token ${p - S.entry(s)})`;
      out.push(`${role} ${role === 'out' ? '' : name + (value ? ': ' : ' = ')}${shown}`);
    }
  }
  return out;
}
function inputLines(m, k, r, s, p) { // a part without a written derivation: what went in, what came out
  const g = R.group(r), formula = k.formula ? [`its formula: ${k.formula}`] : [];
  const rewards = 'rewards of the group: ' + listed(members[g], q => rname(q) + ': ' + num(rewardOf(m, q)), ', ');
  if (k.calls.length) {
    const given = k.calls[0].rows.some(v => v.role === 'in' && v.value);
    return [...formula, ...(given ? [] : [rewards]), ...callLines(k.calls, r, s, p), 'value: ' + num(onAxis(k.value, r, s, p))];
  }
  const out = [...formula, rewards];
  const paid = steps(r).filter(q => !Number.isNaN(S.reward(q)));
  if (paid.length) out.push('step rewards of ' + rname(r) + ': ' + listed(paid, q => 'turn ' + S.turn(q) + ': ' + num(S.reward(q)), ', '));
  if (S.state(s) >= 0 && D.states.length > 1) {
    const same = members[g].flatMap(steps).filter(q => S.state(q) === S.state(s));
    out.push('turns in the same state: ' + listed(same, turnName, ', '));
  }
  if (k.value) out.push('value: ' + num(onAxis(k.value, r, s, p)));
  return out;
}

// A whole group: its statistics once, and the last line of each rollout. Parts that compare turns are the rollouts' own.
function ofGroup(m, g) {
  const blocks = [];
  for (const k of m.summands) {
    const c = k.compared, lines = [];
    if (!c || c.axis !== 'R') {
      const r = members[g][0], of = k.calls.length ? inputLines(m, k, r, R.step(r), S.entry(R.step(r))).slice(0, -1) : [`its formula: ${k.formula}`];
      lines.push(...(c ? [`${c.what} of turns or tokens among ${c.among}: choose one`] : of));
    } else {
      const sets = new Map();
      for (const r of members[g]) sets.set(c.set(r), [...(sets.get(c.set(r)) || []), r]);
      for (const rows of sets.values()) {
        const of = r => summandLines(m, k, r, R.step(r), S.entry(R.step(r))).lines, said = of(rows[0]);
        if (c.status(rows[0]) !== SHOWN) { lines.push(...said); continue; }
        const own = c.settings.center === 'leave_one_out' || c.settings.scale === 'leave_one_out_std';
        lines.push(...said.slice(0, own ? 2 : -1)); // what all share
        const ends = new Map();
        for (const r of rows) { const end = of(r).slice(own ? 2 : -1).join('; '); ends.set(end, [...(ends.get(end) || []), rname(r)]); }
        for (const [end, names] of [...ends].slice(0, 16)) lines.push(`${listed(names, x => x, ', ')}: ${end}`);
        if (ends.size > 16) lines.push(`and ${ends.size - 16} more`);
      }
    }
    blocks.push({title: 'Advantage: ' + k.name, lines});
  }
  return blocks;
}

// The whole way from rewards to the token's share of the gradient: blocks of {title, lines}.
function derivation(m, r, s, p) {
  const blocks = [], a = ofToken(m, 'credit', s, p), found = [];
  if (Number.isNaN(R.reward(r))) return [{title: 'Advantage', lines: ['unscored: it takes part in nothing']}];
  if (m.outcome && m.outcome(r) !== R.reward(r)) blocks.push({title: 'Reward', lines: [`${num(R.reward(r))} in the file, with the method's own rewards ${num(m.outcome(r))}`]});
  for (const k of m.summands) {
    const {lines, value} = summandLines(m, k, r, s, p);
    found.push(num(k.factor) === '1' ? bracket(value) : num(k.factor) + ' \u00d7 ' + bracket(value));
    blocks.push({title: m.summands.length > 1 ? 'Advantage, part ' + found.length + ': ' + k.name : 'Advantage: ' + k.name, lines});
  }
  if (m.summands.length > 1) blocks.push({title: 'Advantage', lines: [`${found.join(' + ')} = ${num(a)}`]});
  blocks.push({title: 'Weight and loss', lines: lossLines(m, r, s, p, a)});
  return blocks;
}
function lossLines(m, r, s, p, a) {
  const out = [];
  if (!T.trained(T.path(p))) return ['not trained'];
  const w = m.weight ? ofToken(m, 'weight', s, p) : 1;
  out.push(...callLines(m.calls.weight, r, s, p), `weight ${num(w, 7)}`);
  if (m.share) {
    const share = ofToken(m, 'share', s, p);
    const n = steps(r).reduce((t, q) => t + entries(q).filter(e => T.trained(T.path(e))).length, 0);
    const same = x => Math.abs(x - share) <= 1e-6 * share;
    const how = m.aggregate === 'token_mean' && same(1 / m.tokens) ? `1 / ${m.tokens} tokens`
      : m.aggregate === 'sequence_mean' && same(1 / (m.rollouts * n)) ? `1 / (${m.rollouts} rollouts \u00d7 ${n} tokens)`
      : m.aggregate === 'sequence_sum' ? `1 / (${m.rollouts} rollouts \u00d7 horizon ${num(1 / (share * m.rollouts), 6)})` : '';
    out.push(`share of the loss, ${m.aggregate}${how ? ' = ' + how : ''} = ${num(share, 6)}`);
  }
  out.push(...callLines(m.calls.loss, r, s, p));
  if (m.pull) {
    const pull = ofToken(m, 'pull', s, p), kept = m.kept ? ofToken(m, 'kept', s, p) : NaN;
    if (!Number.isNaN(kept)) out.push(`${m.surrogate.split(',')[0]} keeps ${num(kept, 4)} of the unclipped gradient`);
    else if (a === 0) out.push('advantage 0: no gradient');
    if (m.share && !Number.isNaN(kept)) out.push(`-dL/dlogprob = share \u00d7 weight \u00d7 advantage \u00d7 kept = ${num(pull / m.tokens, 6)}`);
    out.push(`in units of the advantage: \u00d7 ${m.tokens} tokens = ${num(pull, 6)}`);
  }
  return out;
}
