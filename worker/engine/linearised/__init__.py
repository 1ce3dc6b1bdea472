"""Networks linearised at a public anchor: z(x; w) = N(x; a) + ∂N(x; a)·(w - a), affine in the parameters.

With a loss that is convex in z, the objective is λ-strongly convex for any architecture, so rule B1 applies.
docs/maths.md, section 11, has the derivation.
"""
