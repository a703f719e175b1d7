//! Trains the fixture models.
