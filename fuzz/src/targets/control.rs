//! Group 0: its state as a snapshot has it, and its commands.

use holdfast_control::cluster::{ClusterCommand, ClusterState};
use holdfast_types::{GroupId, LogId};

fn state_bytes(state: &ClusterState) -> Vec<u8> {
    postcard::to_stdvec(state).expect("a state can be written")
}

fn command_bytes(command: &ClusterCommand) -> Vec<u8> {
    postcard::to_stdvec(command).expect("a command can be written")
}

fn commands() -> [ClusterCommand; 2] {
    [ClusterCommand::Init { cluster_id: 7 }, ClusterCommand::PassSets { upto: GroupId(3) }]
}

/// After its first commands.
fn begun() -> ClusterState {
    let mut state = ClusterState::new();
    for (index, command) in (1..).zip(commands()) {
        let _ = state.apply(LogId::new(1, index), &command);
    }
    state
}

/// The first byte chooses: a state, or a command.
pub(super) fn cluster(data: &[u8]) -> bool {
    match data {
        [0, body @ ..] => {
            let Ok((state, [])) = postcard::take_from_bytes::<ClusterState>(body) else { return false };
            let again = postcard::take_from_bytes::<ClusterState>(&state_bytes(&state)).map(|(state, _)| state);
            assert_eq!(again.as_ref(), Ok(&state), "encoded again, it is another");
            true
        }
        [_, body @ ..] => {
            let Ok((command, [])) = postcard::take_from_bytes::<ClusterCommand>(body) else { return false };
            let again =
                postcard::take_from_bytes::<ClusterCommand>(&command_bytes(&command)).map(|(command, _)| command);
            assert_eq!(again.as_ref(), Ok(&command), "encoded again, it is another");
            // Group 0 applies what its leader has sent: it may refuse, and stays consistent.
            let mut state = begun();
            let _ = state.apply(LogId::new(1, 3), &command);
            state.self_check();
            true
        }
        [] => false,
    }
}

pub(super) fn all() -> Vec<Vec<u8>> {
    let states = [ClusterState::new(), begun()].map(|state| [&[0][..], &state_bytes(&state)].concat());
    let commands = commands().map(|command| [&[1][..], &command_bytes(&command)].concat());
    states.into_iter().chain(commands).collect()
}
