"""The words of docs/results.md: what was measured, how to read it, and what was not."""

INTRO = """# Results

Every table and figure of the paper that two processor cores can hold, and our own, with all methods on the
same rows in the same run. This page is written by `python -m bench.results_page` from
`bench/results/*.json` and by nothing else; `make bench` measures (minutes; `BENCH=full` takes everything at
full size), draws the figures and writes the page.

**Read it so.** Data are MNIST, Fashion-MNIST and CIFAR-10. Erasures are biased as in the paper (classes 0
and 7 are 99 times as likely), of the size at which KL(P_R‖P_D) first reaches 0.104; that direction, because
the other is infinite once a class has vanished. Every method starts from the same trained model, is asked
for the same (ε, δ) = (1, 1e-5), and is noised by what its own bound demands. **ΔF1** is F1(retrained,
without noise) - F1(released, with noise) in points: what a user of the model loses. Seeds change the rows
erased, the sampling inside methods, and the noise. Cells have the mean and the range over seeds; noised
figures are means over several draws. `tr` is the service's method; `tr-paper`, `guo2020` and `zhang2024`
are the published ones ([paper.md](paper.md) says what each proves).

**What was not measured.** There was no GPU; SVHN and ResNet-18, for which there is no analytic bound here,
were not run. The published methods' own noise schemes (a perturbed objective, σ set by hand)
are not run; their bounds are turned into output noise by the exact Gaussian trade-off, since the classical
formula is not proved at ε = 1. The noise here is from a seeded generator, so that the run can be repeated;
the service's is not. Parts marked "default" used fewer rows than there are, as each table says."""

PAPER = """The paper's printed figures at KL = 0.104, for its own models, hardware and noise:

| | MNIST, MLP | CIFAR-10, AllCNN | SVHN, ResNet-18 |
|---|---|---|---|
| ΔF1, Guo et al. | 3.94 | – | – |
| ΔF1, Zhang et al. | 4.18 | 9.28 | 11.20 |
| ΔF1, the paper's method | 1.37 | 3.15 | 4.09 |
| ΔU-MIA, Zhang et al. | 0.89 | 2.73 | – |
| ΔU-MIA, the paper's method | 0.79 | 1.4 | – |
| seconds, Guo et al. | 28.8 | – | – |
| seconds, Zhang et al. | 14 | 48 | 105 |
| seconds, the paper's method | 48 | 158 | 355 |"""

UTILITY = """Where a method's bound demands more noise than the model survives, the released F1 is
that of guessing: that is the price of the bound, not of the step. "Before noise" shows the step
alone, which nothing certifies; a negative ΔF1 there is no merit, the model scores better because it
still knows what was to be forgotten. On networks `guo2020` takes no step, and `tr-paper` is lent
the curvature floor that `tr` certified at its own end."""

MEMBERSHIP = """AUC and TPR in per cent of an attack that tells erased rows from unseen ones by their loss;
50 is guessing. Both models carry the same σ, as the guarantee has it, in separate draws. ΔAUC is unlearned
minus retrained; intervals are paired bootstrap percentiles, for each seed. A model that noise has destroyed
leaks nothing and is worth nothing: the last column shows the step before noise, first seed. The paper
reports |Δ|."""

RECONSTRUCTION = """No unlearning guarantee covers someone who holds the model from before an erasure *and*
the one after it: the difference is what was erased. This attack says how much that is. The gradients of
all rows cancel at a minimiser, so the erased rows' part follows from the rest, and the gradient of one row
is a multiple of the row. An attacker with the retained rows needs the earlier version alone; noise on the
later one does not disturb it. One with nothing but the two files takes the curvature from 500 public rows.

**Erasing in larger batches blurs the rows into one another; ε alone does not protect against someone who
kept the earlier version.** Let small requests wait for others, and keep earlier versions from being copied.

*Cosine*: between an erased row and the row rebuilt for its class, mean over erased rows (range over draws).
The last line of each table is what the mean of public rows of the class scores: it is near everybody and
tells nobody apart. *Label*: share of single erasures whose class was recovered. *Named*: share of single
erasures in which, of all rows, the erased one is nearest to the rebuilt one. The class is guessed by two
rules, from the gradient of the bias and from all of it along the mean row; neither is always better, and
both are shown. Chance is 10 % for softmax and 50 % for logistic, and with 20 erasures a share is uncertain
by some 20 points. Estimates from noised files are shrunk to what the noise leaves. What is left then is
partly the known term mλ·weights, which looks like the mean of a class: it lifts the cosine of
batches at ε = 1 (above that of the exact attack at 100 rows) and tells nothing of the erased. Earlier
trials without that term gave 0.16 in place of 0.36 there (softmax), and single rows within 0.02. A
better attack may exist."""

SECONDS = """Processor seconds are comparable on a machine with other work, wall seconds are not. `tr`
includes its certificate; retraining is by the same solver from the anchor to the same distance. Zhang et
al.'s damping was searched for outside the clock."""

BOUNDS = """What each method certifies against where it truly is, and the noise that forces. For
`tr` the noise follows from Δ* alone, so its own Δ is Δ*; B1 (linear models) or B2 (networks) is
what it proved at the end, and on linear models what B1 proves at the others' outputs."""
