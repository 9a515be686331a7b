// The group as a tree: time to the right, a box for a stretch of actions, forks where rollouts part; rewards at the
// leaves, their means on the way back to the prompt. Rollouts share a box where they share their actions so far.
const ACTION = 2, BOX = 20, ROW = 30, STEP = 22, WIDEST = 1500, NS = 'http://www.w3.org/2000/svg';

function actionNodes(s) { // nodes of a turn's action, first to last
  const out = [], size = S.entry(s + 1) - S.entry(s);
  for (let n = S.node(s), count = 0; n >= 0 && N.kind(n) === ACTION && (count < size || !out.length); n = N.parent(n)) {
    out.push(n);
    count += N.first(n + 1) - N.first(n);
  }
  return out.reverse();
}
function trieOf(g) { // {n, step, size, through, kids, up}; the root is the prompt
  const root = {n: -1, through: members[g], kids: [], up: null, act: false, size: 0};
  let count = 0;
  for (const r of members[g]) {
    let at = root;
    for (const s of steps(r)) for (const n of actionNodes(s)) {
      let next = at.kids.find(k => k.n === n);
      if (!next) {
        if (++count > WIDEST) return {root, whole: false};
        next = {n, step: s, size: N.first(n + 1) - N.first(n), through: [], kids: [], up: at, act: true};
        at.kids.push(next);
      }
      next.through.push(r);
      at = next;
    }
    at.ends = [...(at.ends || []), r];
  }
  return {root, whole: true};
}
function drawTree(g, m, chosen, pick) {
  const {root, whole} = trieOf(g), top = scaleOf(m, 'credit');
  const svg = document.createElementNS(NS, 'svg');
  const make = (name, attrs, said) => {
    const e = document.createElementNS(NS, name);
    for (const k in attrs) e.setAttribute(k, attrs[k]);
    if (said !== undefined) e.textContent = seen(said);
    svg.append(e);
    return e;
  };
  let row = 0, width = 0;
  const layout = (x, left) => {
    x.x = left;
    x.label = !x.act ? 'prompt' : (several ? D.agents[S.agent(x.step)] + ' ' : '') + x.size;
    x.w = Math.max(24, 7 * x.label.length + 10);
    x.y = null;
    for (const k of x.kids) { layout(k, left + x.w + STEP + (x.kids.length > 1 ? 42 : 0)); if (x.y === null) x.y = k.y; }
    if (x.y === null) x.y = 18 + ROW * row++;
    width = Math.max(width, left + x.w);
  };
  layout(root, 2);
  const reward = r => rewardOf(m, r);
  const paint = x => {
    for (const k of x.kids) {
      const a = x.x + x.w, y = x.y + BOX / 2, z = k.y + BOX / 2;
      make('path', {d: `M${a},${y} C${a + 14},${y} ${k.x - 14},${z} ${k.x},${z}`, class: 'edge'});
      paint(k);
    }
    const scored = x.through.map(reward).filter(v => !Number.isNaN(v));
    const mean = scored.reduce((t, v) => t + v, 0) / (scored.length || 1);
    let value = NaN;
    if (x.act && m && m.credit) {
      const turn = S.turn(x.step);
      const own = x.through.map(r => meanOver(m, 'credit', [R.step(r) + turn])).filter(v => !Number.isNaN(v));
      value = own.length ? own.reduce((t, v) => t + v, 0) / own.length : NaN;
    }
    const on = chosen && x.through.includes(chosen.r);
    const box = make('rect', {x: x.x, y: x.y, width: x.w, height: BOX, rx: 3, class: 'node ' + (x.act ? shade(value, top) : 'context') + (on ? ' on' : '')});
    make('text', {x: x.x + x.w / 2, y: x.y + 14, 'text-anchor': 'middle'}, x.label);
    const paid = x.act && x.kids.length && S.reward(x.step) ? S.reward(x.step) : 0;
    const tip = document.createElementNS(NS, 'title');
    tip.textContent = seen(x.act ? `${D.agents[S.agent(x.step)]}, turn ${S.turn(x.step)}, ${x.size} tokens; ${x.through.length} of ${members[g].length} rollouts, mean reward ${num(mean, 4)}${paid ? ', paid ' + num(paid, 4) : ''}; mean advantage ${signed(value)}` : 'prompt');
    box.append(tip);
    if (x.act) box.addEventListener('click', () => pick(x.through[0], x.step));
    if (x.kids.length > 1 && scored.length) make('text', {x: x.x + x.w + 3, y: x.y - 4, class: 'mean'}, 'mean ' + num(mean, 3));
    else if (paid) make('text', {x: x.x + x.w + 1, y: x.y - 3, class: 'mean'}, (paid > 0 ? '+' : '') + num(paid, 3));
    if (x.ends) {
      const said = x.ends.map(r => `${rname(r)}: ${Number.isNaN(reward(r)) ? 'unscored' : num(reward(r), 4)}${m && m.credit ? '  (' + signed(advantageOf(m, r)) + ')' : ''}`).join('   ');
      const y = x.kids.length ? x.y + BOX + 11 : x.y + 14;
      make('text', {x: x.kids.length ? x.x : x.x + x.w + 8, y, class: 'leaf'}, said);
      width = Math.max(width, x.x + x.w + 8 + 6.6 * said.length);
    }
  };
  paint(root);
  if (!whole) make('text', {x: 2, y: 18 + ROW * row + 12}, `more than ${WIDEST} boxes: the rest is not drawn`);
  const h = 18 + ROW * row + (whole ? 0 : 20);
  svg.setAttribute('viewBox', `0 0 ${Math.ceil(width + 6)} ${h}`);
  svg.setAttribute('width', Math.ceil(width + 6));
  svg.setAttribute('height', h);
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', `Tree of ${members[g].length} rollouts: in the boxes tokens, at the ends rewards and advantages`);
  svg.setAttribute('class', 'tree');
  return svg;
}
