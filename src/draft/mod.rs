//! Draft trees: sources, reliability, costs, and the builder that weighs them.
