//! How tests change the world.

use super::{Gateway, Shared};

/// A plan with all gateways of the world.
pub fn plan(world: &Shared, sets: &str) -> String {
    let world = world.lock().unwrap();
    let gateway = |gateway: &Gateway| {
        format!("[[gateways]]\nname = {:?}\nregion = \"eu\"\napi = {:?}\n", gateway.name, gateway.api)
    };
    world.gateways.iter().map(gateway).collect::<String>() + sets
}
