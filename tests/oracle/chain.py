"""The hidden Markov chain, step by step."""

from __future__ import annotations

import math

import numpy as np

from iet.native.arrays import Float32s, Float64s, Int64s
from tests.oracle import twin

# Both handing over and staying stay possible, so that no state falls behind another without a limit.
_LOWEST_CHANCE, _LOWEST_SHARE = 1e-12, 1e-8

# α and β are scaled only if a sum leaves this range.
_LOW, _HIGH = 2.0**-20, 2.0**20


@twin
def priors(shares: Float64s, nobodys: Float64s, each: int, priors: Float64s) -> None:
    """Fill `priors` with `prior_of` shares [A] and each of nobody's, so many times: [N·each, A + 1]."""
    agents, given = len(shares), 0.0
    for i in range(agents):
        given += shares[i]
    for r in range(len(priors)):
        nobody = nobodys[r // each]
        total = priors[r, agents] = max(nobody, _LOWEST_SHARE) if nobody > 0 else nobody
        for i in range(agents):
            priors[r, i] = max(shares[i] * ((1 - nobody) / given), _LOWEST_SHARE)
            total += priors[r, i]
        for i in range(agents + 1):
            priors[r, i] /= total


@twin
def posteriors(
    ratios: Float32s,
    cuts: Int64s,
    each: int,
    prior: Float64s,
    stages: int,
    mean_segment: float,
    nobody_segment: float,
    posterior: Float32s,
    left: Float32s,
    found: Float64s,
) -> None:
    # Where nobody alternates with agents he has a mean length, else NaN.
    states = len(prior)
    nobody, last = states - 1, stages - 1
    alternates, pace = 0.0, 1.0  # of nobody's stages, against those of agents
    if not math.isnan(nobody_segment):
        alternates, pace = 1.0, max(mean_segment, stages) / max(nobody_segment, stages)
    rate = stages / max(mean_segment, stages)
    leave, begun = np.empty(states), np.empty(states)  # 1 / (1 - π), and the share of the tokens each holds
    most = held_by_all = 0.0
    for i in range(states):
        others = max(1 - prior[i], 1e-9)
        leave[i] = 1 / others if i < nobody or alternates > 0 else 1.0
        begun[i] = prior[i] * others if alternates > 0 else prior[i]
        if i == nobody:
            begun[i] /= pace
        held_by_all += begun[i]
        most = max(most, prior[i])
    lowest = highest = 0.0  # where there is nobody to hand over to
    if most <= 1 - 1e-9:
        lowest, highest = _LOWEST_CHANCE, 1 - _LOWEST_CHANCE
    if prior[nobody] == 0:
        for t in range(len(left)):
            ratios[t, nobody] = 0.0  # else nobody's β grows on unmarked text, until 0·inf
    longest = 1
    for d in range(len(cuts) - 1):
        longest = max(longest, cuts[d + 1] - cuts[d])
    alpha = np.empty((min(each, longest), stages, states), np.float32)
    kept = np.empty((-(-longest // each), stages, states))
    state, beta = np.empty((stages, states)), np.empty((stages, states))
    onward, held, weights = np.empty(states), np.empty(states), np.empty(states)
    for d in range(len(cuts) - 1):
        for m in range(stages):
            for i in range(states):
                state[m, i], beta[m, i] = begun[i] / held_by_all / stages, 1.0
        final = -(-(cuts[d + 1] - cuts[d]) // each) - 1
        # To the last part and back: the α of one of them are kept at a time.
        for step in range(2 * final + 1):
            keep = step >= final
            p = 2 * final - step if keep else step
            begin = cuts[d] + p * each
            end = min(begin + each, cuts[d + 1])
            for m in range(stages):
                for i in range(states):
                    if not keep:
                        kept[p, m, i] = state[m, i]
                    elif p < final:
                        state[m, i] = kept[p, m, i]
            log_ratio = 0.0
            for t in range(begin, end):  # each row of `alpha` becomes α of a token, up to a factor
                row = t - begin if keep else 0
                advance = min(max(rate, lowest), highest) if t > cuts[d] else 0.0
                nobodys = min(max(rate * pace, lowest), highest) if t > cuts[d] else 0.0
                arriving = 0.0
                for i in range(states):
                    onward[i] = state[last, i] * leave[i] * (advance if i < nobody else nobodys)
                    arriving += onward[i]
                onward[nobody] *= alternates
                total = 0.0
                for i in range(states):
                    q, ratio = advance if i < nobody else nobodys, ratios[t, i]
                    before = state[0, i]
                    now = ((1 - q) * before + prior[i] * (arriving - onward[i])) * ratio
                    state[0, i] = alpha[row, 0, i] = now
                    together = now
                    for m in range(1, stages):
                        own = state[m, i]
                        now = ((1 - q) * own + q * before) * ratio
                        state[m, i] = alpha[row, m, i] = now
                        together += now
                        before = own
                    total += together
                if t == end - 1 or not _LOW < total < _HIGH:
                    log_ratio += math.log(total)
                    for m in range(stages):
                        for i in range(states):
                            state[m, i] /= total
            if p == final or not keep:
                found[d] += log_ratio
            if not keep:
                continue
            # β_t(m, i) ∝ P(scores after t | i in stage m at t): stay, or the next stage, or from the last one
            # a segment of somebody else. γ is α·β divided by its sum: neither needs any scale but a safe one.
            for t in range(end - 1, begin - 1, -1):
                total = 0.0
                for i in range(states):
                    held[i] = alpha[t - begin, 0, i] * beta[0, i]
                    for m in range(1, stages):
                        held[i] += alpha[t - begin, m, i] * beta[m, i]
                    total += held[i]
                scale = 1 / total
                left[t] = held[nobody] * scale
                for i in range(nobody):
                    posterior[t, i] = held[i] * scale
                factor, entering = (1.0 if _LOW < total < _HIGH else scale), 0.0
                for i in range(states):
                    weights[i] = factor * ratios[t, i]
                    held[i] = prior[i] * beta[0, i] * weights[i]
                    entering += held[i]
                held[nobody] *= alternates
                advance = min(max(rate, lowest), highest) if t > cuts[d] else 0.0
                nobodys = min(max(rate * pace, lowest), highest) if t > cuts[d] else 0.0
                for i in range(states):
                    q = advance if i < nobody else nobodys
                    for m in range(last):
                        beta[m, i] = ((1 - q) * beta[m, i] + q * beta[m + 1, i]) * weights[i]
                    others = entering - held[i]
                    beta[last, i] = (1 - q) * weights[i] * beta[last, i] + q * leave[i] * others


@twin
def likelihoods(
    ratios: Float32s,
    tokens: int,
    mean_segments: Float64s,
    nobody_segments: Float64s,
    priors: Float64s,
    found: Float64s,
) -> None:
    # What `_posteriors_loop` says of whole texts, for chains of three stages.
    nobody = priors.shape[1] - 1
    leave, first = np.empty(nobody + 1), np.empty(nobody + 1)
    second, third = np.empty(nobody + 1), np.empty(nobody + 1)
    for s in range(len(ratios)):
        for r in range(len(mean_segments)):
            mean, alternates, pace = max(mean_segments[r], 3.0), 0.0, 1.0
            if not math.isnan(nobody_segments[r]):
                alternates, pace = 1.0, mean / max(nobody_segments[r], 3.0)
            rate = min(3 / mean, 1.0)
            most = held_by_all = 0.0
            for i in range(nobody + 1):
                others = max(1 - priors[r, i], 1e-9)
                leave[i] = 1 / others if i < nobody or alternates > 0 else 1.0
                first[i] = priors[r, i] * others if alternates > 0 else priors[r, i]
                if i == nobody:
                    first[i] /= pace
                held_by_all += first[i]
                most = max(most, priors[r, i])
            for i in range(nobody + 1):
                first[i] = second[i] = third[i] = first[i] / held_by_all / 3
            lowest = highest = 0.0
            if most <= 1 - 1e-9:
                lowest, highest = _LOWEST_CHANCE, 1 - _LOWEST_CHANCE
            log_ratio = 0.0
            for t in range(tokens):
                advance = min(max(rate, lowest), highest) if t > 0 else 0.0
                nobodys = min(max(rate * pace, lowest), highest) if t > 0 else 0.0
                arriving = total = 0.0
                for i in range(nobody + 1):
                    arriving += third[i] * leave[i] * (advance if i < nobody else nobodys)
                for i in range(nobody + 1):
                    q, ratio = advance if i < nobody else nobodys, ratios[s, t, i]
                    own = third[i] * leave[i] * q * (1.0 if i < nobody else alternates)
                    now = ((1 - q) * first[i] + priors[r, i] * (arriving - own)) * ratio
                    then = ((1 - q) * second[i] + q * first[i]) * ratio
                    at_last = ((1 - q) * third[i] + q * second[i]) * ratio
                    first[i], second[i], third[i] = now, then, at_last
                    total += now + then + at_last
                if t == tokens - 1 or not _LOW < total < _HIGH:
                    log_ratio += math.log(total)
                    scale = 1 / total
                    for i in range(nobody + 1):
                        first[i] *= scale
                        second[i] *= scale
                        third[i] *= scale
            found[s, r] = log_ratio
