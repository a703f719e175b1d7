//! Kinds of notes about shared events and faults: parties, clubs, repairs.

use super::relation::{Kind, Value, relation};

const BRING: &[&str] = &[
    "a cake",
    "a salad",
    "two chairs",
    "a guitar",
    "a warm jacket",
    "some wine",
    "a swimsuit",
    "a board game",
    "flowers",
    "a torch",
    "good shoes",
    "a camera",
];
const PARTS: &[&str] = &[
    "a new pump",
    "a seal",
    "a filter",
    "two tyres",
    "a battery",
    "a heating coil",
    "a door handle",
    "a fan belt",
    "a valve",
    "a fuse",
];
const THINGS: &[&str] =
    &["washing machine", "car", "boiler", "bicycle", "dishwasher", "heater", "oven", "roof", "fridge"];

/// The kinds.
pub(super) const KINDS: &[Kind] = &[
    Kind {
        subject: "[the party of {n}|the {n} party|{n}'s party]",
        pronoun: "the party",
        name: Value::Person,
        title: "[Party: {n}|{n}'s party|Plan for {n}'s party]",
        opening: "[plan for {s}|ideas for {s}|what to know about {s}]",
        filler: &[
            "the neighbours know about it",
            "please keep it a surprise",
            "the music should not be too loud",
        ],
        relations: &[
            relation(
                "Date",
                Value::Date,
                "is on {v}",
                "[the date of {s} is {v}|we celebrate {s} on {v}]",
                "[when is {s}|what is the date of {s}]",
            ),
            relation(
                "Start",
                Value::Time,
                "starts at {v}",
                "[the start of {s} is at {v}|guests of {s} arrive at {v}]",
                "[at what time does {s} start|when do the guests of {s} arrive]",
            ),
            relation(
                "Place",
                Value::Brand,
                "is held at {v}",
                "[the place for {s} is {v}|we meet at {v} for {s}]",
                "[where is {s} held|what is the place for {s}]",
            ),
            relation(
                "Bring",
                Value::List(BRING),
                "asks guests to bring {v}",
                "[please bring {v} to {s}|we bring {v} to {s}]",
                "[what should guests bring to {s}|what do we bring to {s}]",
            ),
            relation(
                "Music",
                Value::Person,
                "has music by {v}",
                "[{v} plays the music at {s}|the music at {s} is played by {v}]",
                "[who plays the music at {s}|who makes the music at {s}]",
            ),
            relation(
                "Guests",
                Value::Count(6, 80, " guests"),
                "has {v}",
                "[we invited {v} to {s}|{v} come to {s}]",
                "[how many guests come to {s}|how many guests are invited to {s}]",
            ),
        ],
    },
    Kind {
        subject: "[the {n} club|the club {n}]",
        pronoun: "the club",
        name: Value::Brand,
        title: "[The {n} club|{n} club|Club {n}]",
        opening: "[news from {s}|notes about {s}]",
        filler: &["new members are welcome", "the fee stays the same", "last time was great fun"],
        relations: &[
            relation(
                "Meets on",
                Value::Date,
                "meets on {v}",
                "[the next date of {s} is {v}|we see {s} again on {v}]",
                "[when does {s} meet|what is the next date of {s}]",
            ),
            relation(
                "Time",
                Value::Time,
                "begins at {v}",
                "[the start of {s} is at {v}|be at {s} by {v}]",
                "[at what time does {s} begin|what is the start of {s}]",
            ),
            relation(
                "Place",
                Value::Place,
                "meets in {v}",
                "[the home of {s} is {v}|{s} comes together in {v}]",
                "[where does {s} meet|in which town does {s} come together]",
            ),
            relation(
                "Chair",
                Value::Person,
                "is chaired by {v}",
                "[{v} chairs {s}|the chair of {s} is {v}]",
                "[who chairs {s}|who is the chair of {s}]",
            ),
            relation(
                "Fee",
                Value::Money,
                "has a yearly fee of {v}",
                "[the fee of {s} is {v}|members of {s} pay {v}]",
                "[what is the fee of {s}|how much do members of {s} pay]",
            ),
            relation(
                "Members",
                Value::Count(5, 60, " members"),
                "has {v}",
                "[{v} belong to {s}|the size of {s} is {v}]",
                "[how many members does {s} have|how many members belong to {s}]",
            ),
            relation(
                "Treasurer",
                Value::Person,
                "has {v} as treasurer",
                "[the treasurer of {s} is {v}|{v} keeps the money of {s}]",
                "[who is the treasurer of {s}|who keeps the money of {s}]",
            ),
        ],
    },
    Kind {
        subject: "[the {n} repair|the repair of the {n}]",
        pronoun: "the repair",
        name: Value::Choice(THINGS),
        title: "[Repair: {n}|{n} repair|The {n} is broken]",
        opening: "[notes on {s}|state of {s}|this is about {s}]",
        filler: &["the noise started last week", "keep the old parts", "someone has to be at home"],
        relations: &[
            relation(
                "Technician",
                Value::Person,
                "is done by {v}",
                "[{v} does {s}|the technician for {s} is {v}]",
                "[who does {s}|who is the technician for {s}]",
            ),
            relation(
                "Date",
                Value::Date,
                "is planned for {v}",
                "[the date of {s} is {v}|we expect {s} on {v}]",
                "[when is {s} planned|what is the date of {s}]",
            ),
            relation(
                "Cost",
                Value::Money,
                "costs {v}",
                "[the bill for {s} is {v}|we pay {v} for {s}]",
                "[how much does {s} cost|what is the bill for {s}]",
            ),
            relation(
                "Part",
                Value::Choice(PARTS),
                "needs {v}",
                "[the part for {s} is {v}|{v} is needed for {s}]",
                "[what does {s} need|which part is needed for {s}]",
            ),
            relation(
                "Company",
                Value::Company,
                "was given to {v}",
                "[the company for {s} is {v}|{v} takes care of {s}]",
                "[which company takes care of {s}|what is the company for {s}]",
            ),
            relation(
                "Ticket",
                Value::Code,
                "has the ticket number {v}",
                "[the ticket number of {s} is {v}|{v} is the ticket of {s}]",
                "[what is the ticket number of {s}|which ticket does {s} have]",
            ),
        ],
    },
];
