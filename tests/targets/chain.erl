% One chain of calls in code that the machine compiles, with functions of the machine's own that are
% called from it, until it is killed.
-module(chain).
-export([main/0]).

leaf_chain(0, Sum) -> Sum;
leaf_chain(N, Sum) -> leaf_chain(N - 1, (Sum * 31 + N) rem 65521).

parent_chain(N) -> leaf_chain(200, N) + 1.

root_chain(0, Total) -> Total;
root_chain(N, Total) -> root_chain(N - 1, Total + parent_chain(N)).

parent_turn(0, List) -> List;
parent_turn(N, List) -> parent_turn(N - 1, lists:reverse(List, [])).

root_turn(N, List) -> length(parent_turn(N, List)).

loop(List) ->
    root_chain(50, 0),
    root_turn(1000, List),
    loop(List).

main() ->
    io:format("ready~n"),
    loop(lists:seq(1, 200)).
