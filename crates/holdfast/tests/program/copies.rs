//! Copies of a volume (`volume import`, `volume export`), against gateways that have only an admin door.

use crate::commands::{calls, cluster, error};

/// Between the grant and the first connection the set may move to another gateway. The copy continues its lease, as
/// after any lost connection.
#[tokio::test]
async fn a_copy_whose_first_connection_fails_looks_for_the_gateway_again() {
    let (world, api) = cluster().await;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    world.lock().unwrap().gateways[2].nbd = nobody.local_addr().unwrap().to_string();
    drop(nobody);
    let image = tempfile::NamedTempFile::new().unwrap();
    let args = ["volume", "import", image.path().to_str().unwrap(), "demo/vol1", "--timeout", "2s"];
    let said = error(4, &api, &args).await;
    assert!(said["message"].as_str().unwrap().contains("demo/vol1"), "{said}");
    let asked = calls(&world).iter().filter(|call| call.ends_with("continue_lease")).count();
    assert!(asked > 1, "the lease was continued {asked} times");
}
