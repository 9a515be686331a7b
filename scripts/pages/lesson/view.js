// The lesson's page: sliders for step and group size, a choice of method and question, bars for the advantages.
const RUN = JSON.parse(document.getElementById('run').textContent);
const state = {step: 0, group: 0, size: 8, method: 'grpo'};
const $ = id => document.getElementById(id);
const signed = x => x === 0 ? '0' : (x > 0 ? '+' : '\u2212') + Math.abs(x).toFixed(2);
function node(tag, attributes, ...children) {
  const svg = ['svg', 'polyline', 'circle', 'path', 'text'].includes(tag);
  const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const k in attributes) e.setAttribute(k, attributes[k]);
  e.append(...children);
  return e;
}
const rewardsOf = group => group.answers.slice(0, state.size).map(([, reward]) => reward);
function draw() {
  const {step, groups} = RUN.steps[state.step], group = groups[state.group];
  $('step-name').textContent = step; $('size-name').textContent = state.size;
  $('formula').textContent = METHODS[state.method].formula;
  const x = s => 30 + 10 * s, y = a => 100 - 90 * a, points = RUN.accuracy;
  $('curve').replaceChildren(
    node('path', {d: 'M30 100H330M30 10V100', class: 'axis'}), node('text', {x: 4, y: 14}, '1'), node('text', {x: 4, y: 104}, '0'),
    node('polyline', {points: points.map(([s, a]) => x(s) + ',' + y(a)).join(' ')}),
    ...points.map(([s, a]) => node('circle', {cx: x(s), cy: y(a), r: s === step ? 5 : 3, class: s === step ? 'now' : ''})),
    node('text', {x: 30, y: 118}, 'held-out sums that it gets right, over 30 steps'));
  const isSilent = g => rewardsOf(g).every(r => r === rewardsOf(g)[0]);
  const silent = groups.filter(isSilent).length;
  $('silent').textContent = silent ? `With groups of ${state.size}, ${silent} of the ${groups.length} questions (dashed) can teach nothing: all their answers are right, or all wrong.` : `With groups of ${state.size}, every question has right and wrong answers.`;
  $('questions').replaceChildren(...groups.map((g, i) => {
    const button = node('button', {'aria-pressed': String(i === state.group), class: isSilent(g) ? 'silent' : ''}, g.prompt);
    button.addEventListener('click', () => { state.group = i; draw(); });
    return button;
  }));
  const values = advantages(state.method, rewardsOf(group)), top = Math.max(1, ...values.map(Math.abs));
  $('answers').replaceChildren(...values.map((a, i) => {
    const [text, reward] = group.answers[i];
    const bar = node('i', {class: a > 0 ? 'up' : 'down', style: `width:${50 * Math.abs(a) / top}%;${a > 0 ? 'left:50%' : 'right:50%'}`});
    return node('tr', {}, node('td', {class: 'text'}, group.prompt + text), node('td', {}, String(reward)), node('td', {class: 'bar'}, bar), node('td', {class: 'n'}, signed(a)));
  }));
  const right = rewardsOf(group).filter(r => r).length;
  $('sentence').textContent = isSilent(group)
    ? `All ${state.size} answers got the same reward, so every advantage is 0: this question changes nothing. Choose a larger group, or another question.`
    : `${right} of ${state.size} answers are right. The right ones are made more probable, the wrong ones less; the bars add up to ${signed(Number(values.reduce((s, v) => s + v, 0).toFixed(6)))}.`;
}
$('step').max = RUN.steps.length - 1;
$('step').addEventListener('input', e => { state.step = Number(e.target.value); draw(); });
$('size').addEventListener('input', e => { state.size = Number(e.target.value); draw(); });
$('method').append(...Object.keys(METHODS).map(name => node('option', {}, name)));
$('method').addEventListener('change', e => { state.method = e.target.value; draw(); });
// it opens on a question that teaches
state.group = Math.max(0, RUN.steps[0].groups.findIndex(g => !rewardsOf(g).every(r => r === rewardsOf(g)[0])));
draw();
