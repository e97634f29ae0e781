//! `millpond costs`: what driver calls take on this machine, and prices for the simulator.

mod prices;

pub(crate) use prices::read;
