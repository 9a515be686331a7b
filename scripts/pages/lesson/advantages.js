// Advantages of a group of rewards, as gxpo computes them; tests hold them against the library.
const mean = x => x.reduce((a, b) => a + b, 0) / x.length;
const deviation = x => { const m = mean(x); return Math.sqrt(x.reduce((a, b) => a + (b - m) ** 2, 0) / (x.length - 1)); };
const METHODS = {
  grpo: {formula: '(r - mean) / (std + 0.000001)', of: x => { const m = mean(x), s = deviation(x); return x.map(r => (r - m) / (s + 1e-6)); }},
  dr_grpo: {formula: 'r - mean', of: x => { const m = mean(x); return x.map(r => r - m); }},
  rloo: {formula: 'r - mean of the others', of: x => { const sum = x.reduce((a, b) => a + b, 0); return x.map(r => r - (sum - r) / (x.length - 1)); }},
  maxrl: {formula: '(r - mean) / (mean + 0.000001)', of: x => { const m = mean(x); return x.map(r => (r - m) / (m + 1e-6)); }},
};
function advantages(name, rewards) { // equal rewards and a group of one teach nothing
  return rewards.every(r => r === rewards[0]) ? rewards.map(() => 0) : METHODS[name].of(rewards);
}
if (typeof module !== 'undefined') module.exports = {METHODS, advantages};
