"""Two settings measured in turn, so that what else the machine does hits both."""

import statistics


class Alternating:
    """a, b, a of each round: b against a is the question, a against a the spread that nobody caused."""

    def __init__(self, a, b, rounds):
        a(), b()  # files in memory, clocks up
        self.rounds = [(a(), b(), a()) for _ in range(rounds)]

    def differences(self, quantity):
        return [b[quantity] - a[quantity] for a, b, _ in self.rounds]

    def same(self, quantity):
        return [again[quantity] - a[quantity] for a, _, again in self.rounds]

    def median(self, quantity, which):
        return statistics.median(r[which][quantity] for r in self.rounds)

    def median_difference(self, quantity):
        return statistics.median(self.differences(quantity))

    def resolved(self, quantity):
        """Whether b differs from a by more than a differs from itself: quartile to quartile."""
        low, _, high = statistics.quantiles(self.same(quantity), n=4)
        return abs(self.median_difference(quantity)) > high - low

    def describe(self, quantity, unit, name):
        def quartiles(values):
            return "{:.3g} ({:.3g} to {:.3g})".format(*(statistics.quantiles(values, n=4)[i] / unit for i in (1, 0, 2)))

        return (f"{quantity}: {self.median(quantity, 0) / unit:.4g} and {self.median(quantity, 1) / unit:.4g} {name}; "
                f"difference {quartiles(self.differences(quantity))}, of equals {quartiles(self.same(quantity))} {name}, "
                f"medians and quartiles of {len(self.rounds)} rounds")
