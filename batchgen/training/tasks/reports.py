"""The kinds of report that the summary task is about: facts in, sentences and the one-line summary out.

A summary is a function of the facts that its report states; a sentence that the summary doesn't use is a distractor.
Nothing here orders the sentences or fills in distractors of its own: that is `summary`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from batchgen.training.tasks.sample import between, chance, pick
from batchgen.training.tasks.words import (
    ANIMALS,
    COMPANIES,
    DAYS,
    DEVICES,
    FAULTS,
    FIRST_NAMES,
    GOODS,
    GROUPS,
    LAST_NAMES,
    MACHINES,
    MONTHS,
    PLACES,
    REMEDIES,
    TEAMS,
)


@dataclass(frozen=True, slots=True)
class Report:
    """`lead` opens the report; `body` may stand in any order after it; `summary` is the right answer."""

    lead: str
    body: tuple[str, ...]
    summary: str


def person(rng: Random) -> str:
    """A first and a last name."""
    return f"{pick(rng, FIRST_NAMES)} {pick(rng, LAST_NAMES)}"


def date(rng: Random) -> str:
    """A day of a month, as `14 May`."""
    return f"{between(rng, 1, 28)} {pick(rng, MONTHS)}"


def clock_time(rng: Random) -> str:
    """A time of day on five minutes, as `07:40`."""
    return f"{between(rng, 6, 21):02}:{between(rng, 0, 11) * 5:02}"


def outage(rng: Random) -> Report:
    """A machine that stood still: where, what, when, why, for how long, who repaired it."""
    place = f"{pick(rng, PLACES)} {pick(rng, ('plant', 'mill', 'works', 'depot'))}"
    machine, cause = f"{pick(rng, MACHINES)} {between(rng, 1, 9)}", pick(rng, FAULTS)
    day, name = date(rng), person(rng)
    minutes, lost = between(rng, 15, 180), between(rng, 20, 480)
    lead = pick(
        rng,
        (
            f"At {clock_time(rng)} on {day} {machine} failed at the {place}.",
            f"On {day} {machine} of the {place} stopped without warning.",
            f"The {place} reports that {machine} broke down on {day} at {clock_time(rng)}.",
        ),
    )
    repaired = chance(rng, 0.75)
    found = pick(rng, (f"{name} found {cause}", f"Technician {name} traced it to {cause}"))
    done = pick(rng, (" and repaired it.", " and replaced the part.")) if repaired else ", but has no spare part."
    body = [
        found + done,
        pick(rng, (f"The line stood still for {minutes} minutes.", f"Work could not go on for {minutes} minutes.")),
    ]
    summary = f"{place}: {machine} down {minutes} minutes on {day}, {cause}"
    if chance(rng, 0.5):
        body.append(pick(rng, (f"In all {lost} units were lost.", f"This cost the plant {lost} units.")))
        summary += f", {lost} units lost"
    outcome = f"repaired by {name}." if repaired else f"{name} waits for a part."
    return Report(lead, tuple(body), f"{summary}; {outcome}")


def delivery(rng: Random) -> Report:
    """An order on its way: to whom, how much of what, what was damaged, what held it up, when it comes."""
    order, company, goods = between(rng, 10000, 99999), pick(rng, COMPANIES), pick(rng, GOODS)
    amount, damaged, origin = between(rng, 12, 96), between(rng, 2, 9), pick(rng, PLACES)
    arrival, driver = date(rng), person(rng)
    lead = pick(
        rng,
        (
            f"Order {order} for {company} left {origin} with {amount} {goods}.",
            f"{company} has {amount} {goods} on the way from {origin} under order {order}.",
            f"From {origin} we sent {amount} {goods} to {company}, order {order}.",
        ),
    )
    body = [
        pick(
            rng,
            (
                f"The driver, {driver}, expects to arrive on {arrival}.",
                f"{driver} drives the truck and should be there on {arrival}.",
                f"It is now due on {arrival}, says {driver}.",
            ),
        )
    ]
    summary = f"Order {order} to {company}: {amount} {goods}"
    if chance(rng, 0.5):
        body.append(pick(rng, (f"On loading, {damaged} of them were damaged.", f"Sadly {damaged} arrived broken.")))
        summary += f", {damaged} damaged"
    if chance(rng, 0.6):
        cause = pick(rng, ("snow", "a flat tyre", "road works", "a strike", "heavy rain", "a customs check"))
        body.append(pick(rng, (f"It was held up by {cause}.", f"There was a delay because of {cause}.")))
        summary += f", delayed by {cause}"
    return Report(lead, tuple(body), f"{summary}, arrives {arrival}.")


def meeting(rng: Random) -> Report:
    """Minutes: who met, what was decided, who does it, by when, and what is put off."""
    group = f"{pick(rng, GROUPS)} {pick(rng, ('team', 'board', 'group'))}"
    day, owner, chair, due = pick(rng, DAYS), person(rng), person(rng), date(rng)
    verb = pick(rng, ("repair", "replace", "paint", "sell", "order", "move", "test", "clean"))
    thing = pick(rng, ("roof", "heating", "printers", "main door", "fence", "old van", "lights", "kitchen", "signs"))
    other = pick(rng, ("the summer party", "the parking rules", "the new logo", "the opening hours", "the web page"))
    lead = pick(
        rng,
        (
            f"The {group} met on {day} with {chair} in the chair.",
            f"On {day} {chair} opened the meeting of the {group}.",
            f"Minutes of the {group}, {day}, taken by {chair}.",
        ),
    )
    decision = pick(
        rng,
        (
            f"It was decided to {verb} the {thing}, and {owner} will see to it by {due}.",
            f"{owner} was asked to {verb} the {thing} before {due}.",
            f"All agreed to {verb} the {thing}; {owner} takes this on and reports on {due}.",
        ),
    )
    body, summary = [decision], f"The {group} will {verb} the {thing} ({owner}, by {due})"
    if chance(rng, 0.5):
        body.append(pick(rng, (f"The talk about {other} was put off.", f"There was no time left for {other}.")))
        summary += f"; {other} put off"
    if chance(rng, 0.5):
        cost = between(rng, 12, 99) * 10
        body.append(pick(rng, (f"Up to {cost} euros may be spent.", f"The cost must stay below {cost} euros.")))
        summary += f"; at most {cost} euros"
    return Report(lead, tuple(body), summary + ".")


def weather(rng: Random) -> Report:
    """A day's weather from three readings; the summary names the highest and what fell."""
    place, day = pick(rng, PLACES), date(rng)
    morning, noon, evening = (between(rng, 2, 34) for _ in range(3))
    wind = pick(rng, ("north", "south", "east", "west"))
    lead = pick(
        rng,
        (
            f"{place} had {morning} degrees on the morning of {day}, {noon} at noon and {evening} in the evening.",
            f"Readings for {place} on {day}: {morning} degrees at dawn, {noon} at midday, {evening} after sunset.",
        ),
    )
    speed = between(rng, 8, 70)
    body = [
        pick(rng, (f"The wind came from the {wind} at {speed} km/h.", f"A {wind} wind blew at up to {speed} km/h."))
    ]
    summary = f"{place}, {day}: at most {max(morning, noon, evening)} degrees, wind {wind} {speed} km/h"
    if chance(rng, 0.6):
        fell, depth = pick(rng, ("rain", "snow", "hail")), between(rng, 1, 40)
        body.append(pick(rng, (f"The gauge showed {depth} mm of {fell}.", f"In all {depth} mm of {fell} fell.")))
        summary += f", {depth} mm of {fell}."
    else:
        body.append(pick(rng, ("It stayed dry all day.", "Not a drop fell.")))
        summary += ", dry."
    return Report(lead, tuple(body), summary)


def match(rng: Random) -> Report:
    """A game of two teams; the summary says who beat whom, wherever the report says it the other way round."""
    first = pick(rng, TEAMS)
    second = pick(rng, [team for team in TEAMS if team != first])
    place, scorer, high = pick(rng, PLACES), person(rng), between(rng, 1, 6)
    low = between(rng, 0, high)
    spectators = between(rng, 200, 980)
    opening = pick(rng, (f"{spectators} people came to see", f"In front of {spectators} guests there was a game of"))
    lead = f"{opening} the {first} against the {second} in {place}."
    if high == low:
        body = [f"Nobody won: it ended {high} to {low}."]
        result = f"{first} and {second} drew {high}-{low} in {place}"
    else:
        winner, loser = (first, second) if chance(rng, 0.5) else (second, first)
        body = [pick(rng, (f"The {winner} won {high} to {low}.", f"The {loser} lost by {low} to {high}."))]
        result = f"{winner} beat {loser} {high}-{low} in {place}"
    if high > 0 and chance(rng, 0.7):
        body.append(pick(rng, (f"The best player was {scorer}.", f"{scorer} was named player of the day.")))
        result += f"; best player {scorer}"
    if chance(rng, 0.4):
        hurt = person(rng)
        body.append(pick(rng, (f"{hurt} left the field injured.", f"An injury ended the day early for {hurt}.")))
        result += f"; {hurt} injured"
    return Report(lead, tuple(body), result + ".")


def ticket(rng: Random) -> Report:
    """A support case: number, who, which device, which error, what was tried, how urgent it is."""
    number, customer = between(rng, 1000, 9999), person(rng)
    device = f"{pick(rng, DEVICES)} {pick(rng, 'ABCKRXZ')}{between(rng, 100, 999)}"
    error, tried = between(rng, 10, 99), pick(rng, REMEDIES)
    lead = pick(
        rng,
        (
            f"Ticket {number}: {customer} writes that the {device} shows error {error}.",
            f"{customer} opened ticket {number} because of error {error} on the {device}.",
            f"Error {error} came up on the {device} of {customer}, ticket {number}.",
        ),
    )
    helped = chance(rng, 0.5)
    outcome, verdict = ("solved the problem", "solved") if helped else ("did not help", "not solved")
    body = [
        pick(rng, (f"We tried {tried}, which {outcome}.", f"The hotline suggested {tried}; it {outcome}.")),
        pick(rng, (f"They use it since {date(rng)}.", f"It was bought on {date(rng)}.")),
    ]
    summary = f"Ticket {number}: {device}, error {error}, {customer}; {verdict} by {tried}"
    if not helped and chance(rng, 0.6):
        day = date(rng)
        body.append(pick(rng, (f"An answer is needed by {day}.", f"{customer} wants to hear from us before {day}.")))
        summary += f"; answer by {day}"
    return Report(lead, tuple(body), summary + ".")


def sales(rng: Random) -> Report:
    """Units sold in two months; the summary says which way they went, and which product led."""
    place, index = pick(rng, PLACES), between(rng, 0, 10)
    before, after = between(rng, 110, 980), between(rng, 110, 980)
    product = pick(rng, ("lamps", "chairs", "desks", "bikes", "tents", "boots", "coats", "clocks", "radios", "mugs"))
    manager, month, last = person(rng), MONTHS[index + 1], MONTHS[index]
    lead = pick(
        rng,
        (
            f"The {place} shop sold {before} units in {last} and {after} in {month}.",
            f"In {month} the shop in {place} sold {after} units, after {before} in {last}.",
            f"{place}: {before} units sold in {last}, {after} units in {month}.",
        ),
    )
    trend = "rose" if after > before else "fell" if after < before else "stayed"
    body = [pick(rng, (f"Most of the money came from {product}.", f"The best product was {product}."))]
    summary = f"{place} sales {trend} from {before} to {after} in {month}, led by {product}"
    if chance(rng, 0.6):
        body.append(pick(rng, (f"{manager} is the new manager.", f"The shop is now run by {manager}.")))
        summary += f"; new manager {manager}"
    if chance(rng, 0.4):
        returns = between(rng, 3, 60)
        body.append(pick(rng, (f"Customers sent back {returns} units.", f"There were {returns} returns.")))
        summary += f"; {returns} returned"
    return Report(lead, tuple(body), summary + ".")


def survey(rng: Random) -> Report:
    """Animals counted at a place by two people; the summary names the commonest and the sum."""
    animals = rng.sample(ANIMALS, 3)
    spot = f"{pick(rng, ('Lake', 'Mount', 'Fort', 'Cape'))} {pick(rng, PLACES)}"
    name, day = person(rng), date(rng)
    first, second = between(rng, 10, 49), between(rng, 10, 49)
    while second == first:
        second = between(rng, 10, 49)
    lead = pick(
        rng,
        (
            f"On {day} {name} counted {first} {animals[0]} and {second} {animals[1]} at {spot}.",
            f"At {spot} {name} saw {first} {animals[0]} and {second} {animals[1]} on {day}.",
        ),
    )
    most = animals[0] if first > second else animals[1]
    body = [pick(rng, (f"There were no {animals[2]} this time.", f"Nobody saw any {animals[2]}."))]
    summary = f"{spot}, {day}: {first + second} animals, mostly {most}, no {animals[2]}"
    if chance(rng, 0.5):
        path = pick(rng, ("bridge", "tower", "trail", "hide", "gate"))
        body.append(pick(rng, (f"The {path} is closed.", f"Nobody may use the {path} for now.")))
        summary += f"; {path} closed"
    return Report(lead, tuple(body), f"{summary} ({name}).")


REPORTS: tuple[Callable[[Random], Report], ...] = (outage, delivery, meeting, weather, match, ticket, sales, survey)
