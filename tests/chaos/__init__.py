"""The chaos run: random users and random faults against a whole fleet, and a model that knows what every VM must be.

    python -m tests.chaos --seed 7 --minutes 5

Everything random is drawn from generators that are seeded with the run's seed and an actor's name, so the same seed
gives the same plan: the same users asking the same things in the same order, the same faults in the same order. When
exactly each of them happens depends on the machine. A seed that found something finds it again often, not always.
"""
