/* gateway.pml: two nodes; what goes to the other node goes through one gateway there, what returns as a sum comes through it too.
 * Node 0 has the first SIZE of N ranks. Gateway of a rank on the other node: its local index modulo that node's size. In every call a
 * rank tells everybody that it arrived (with a header), and its neighbours and gateways its table. Once everybody has arrived, a gateway
 * brings tables to its neighbours (dispatch), with an arrived word on the source's behalf. Calls are of any kind, the same on all ranks:
 *   DISPATCH_EARLY  post: rows to neighbours and gateway, finished; the gateway forwards them, then says finished on the source's behalf
 *   COMBINE_EARLY   post: owners push into the gateway's relay slots, finished; the gateway adds, puts the sum at home, says finished
 *   DISPATCH_LATE   after all tables, in rounds of two halves: source -> gateway -> its neighbours
 *   COMBINE_LATE    after all arrivals, in rounds of two halves: owners -> gateway -> home; the gateway acknowledges once it added, and
 *                   puts a round at home once home took the one before the last
 * Flows of the late kinds are advanced in any order, none waits for another; a late call has no finishes. Memory holds what lies in it
 * unread, as in exchange.pml. Steps without a wait between them are merged.
 *
 * Must fail: ONE_PARITY; SIGNAL_FIRST (finished before forwarded); GATE_WAITS (own finished only after own forwards); NO_TABLES (plans
 *   without the tables that gateways bring); EARLY_TAKEN (acknowledged to the source before forwarded); NO_NEIGHBOUR_TAKEN (forwarded
 *   into a half that is not free); NO_HOME_TAKEN (the sum put into a half that is not free); BLOCKING (own sends first, then forwards,
 *   then takes); UNREAD_REFUSAL (with REFUSE: forwards what has finished before it knows whether the call is refused).
 * Must hold: ACK_AFTER_HOME (owners acknowledged once home acknowledged); LOCKSTEP (one round after the other); REFUSE (with the early
 *   kinds: one rank refuses one call and sends nothing but its arrival; everybody ends that call once all have arrived).
 */
#ifndef N
#define N 3
#endif
#ifndef SIZE
#define SIZE 2
#endif
#ifndef CALLS
#define CALLS 2
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#define DISPATCH_EARLY 0
#define COMBINE_EARLY 1
#define DISPATCH_LATE 2
#define COMBINE_LATE 3

#define NODE(r) ((r) >= SIZE)
#define INDEX(r) ((r) - NODE(r) * SIZE)
#define GATE(r) ((r) < SIZE -> SIZE + (r) % (N - SIZE) : ((r) - SIZE) % SIZE)
#define IS_NEAR(a, b) ((a) != (b) && NODE(a) == NODE(b))
#define IS_SERVED(gate, r) (NODE(gate) != NODE(r) && GATE(r) == (gate))

#ifdef ONE_PARITY
#define PARITY(m) 0
#else
#define PARITY(m) ((m) % 2)
#endif
#define WORD(at, of) ((at) * N + (of))
#define COUNT(m, count) ((m) * 8 + (count))
#define TAG(m, round, of) (((m) * 4 + (round)) * 4 + (of))

byte kind[CALLS + 1];
byte arrived[N * N]; /* [at][of] */
byte finished[N * N];
byte far_arrived[N * N]; /* [at][of], written by the gateway on the source's behalf */
byte far_finished[N * N];
byte rounds[N * N]; /* [at][of], written by the source or its gateway, which is always the same */
byte relayed[N * SIZE * SIZE]; /* at a gateway: rounds for a home, of an owner */
byte taken[N * N * N];         /* [at][by][of]: at whoever wrote the rounds of a source, or for a home */
byte header_[N * 2 * N];
byte table_[N * 2 * N];
byte slot_[N * 2 * N];
byte relay_slot_[N * 2 * SIZE * SIZE];
byte stage_[N * 2 * N];
byte relay_stage_[N * 2 * SIZE * SIZE];

#define HEADER(at, m, of) header_[((at) * 2 + PARITY(m)) * N + (of)]
#define TABLE(at, m, of) table_[((at) * 2 + PARITY(m)) * N + (of)]
#define SLOT(at, m, of) slot_[((at) * 2 + PARITY(m)) * N + ((of) + (m) / 2) % N]
#define RELAY_SLOT(at, m, home, of) relay_slot_[(((at) * 2 + PARITY(m)) * SIZE + INDEX(home)) * SIZE + INDEX(of)]
#define STAGED_HALF(at, of, round) stage_[(at) * 2 * N + (of) * 2 + (round) % 2]
#define HOME_HALF(at, of, round) stage_[(at) * 2 * N + ((round) % 2) * N + ((of) + (round) / 2) % N]
#define RELAY_HALF(at, home, of, round) relay_stage_[(((at) * 2 + (round) % 2) * SIZE + INDEX(home)) * SIZE + INDEX(of)]
#define RELAYED(at, home, of) relayed[((at) * SIZE + INDEX(home)) * SIZE + INDEX(of)]
#define TAKEN(at, by, of) taken[((at) * N + (by)) * N + (of)]
/* The half of round `count` is free: `by` has taken round count - 2. */
#define IS_FREE(at, by, of, count) ((count) < 2 || TAKEN(at, by, of) >= COUNT(m, (count) - 1))

byte refuser = N; /* N = nobody has refused yet; in calls after, too: one refusal is enough */
bit refused[CALLS + 1];

/* Nothing is overwritten unread, but rows and tables of refused calls, which nobody reads. */
inline write(cell, tag) {
  assert(cell == 0 || refused[cell / 16]);
  cell = tag
}
inline read(cell, tag) {
  assert(cell == tag);
  cell = 0
}

/* Inside atomic steps only. */
#define FOR_EACH(who, what) \
  i = 0; \
  do :: i < N -> if :: (who) -> what :: else fi; i++ :: else -> i = 0; break od
#define IS_DISPATCH(m) (kind[m] == DISPATCH_EARLY || kind[m] == DISPATCH_LATE)
#define IS_LINKED(a, b) (IS_NEAR(a, b) || GATE(a) == (b))
#define EACH_RANK(step) (step(0) && step(1) && step(2) && step(3))
#define WITH_EACH_RANK(step) step(0) step(1) step(2) step(3)

inline announce() {
  FOR_EACH(i != me, write(HEADER(i, m, me), TAG(m, 0, 0)); arrived[WORD(i, me)] = m);
  FOR_EACH(!own && IS_LINKED(me, i) && IS_DISPATCH(m), write(TABLE(i, m, me), TAG(m, 0, 0)))
}

#define HAS_ARRIVED(r) ((r) >= N || (r) == me || arrived[WORD(me, (r) % N)] >= m)
inline wait_for_arrivals() {
  atomic {
    EACH_RANK(HAS_ARRIVED);
    FOR_EACH(i != me, read(HEADER(me, m, i), TAG(m, 0, 0)))
  }
}

/* Brings the tables of those served to the neighbours. */
#define HAS_TABLE(r) ((r) >= N || (r) == me || IS_LINKED((r) % N, me) || far_arrived[WORD(me, (r) % N)] >= m)
inline exchange_tables() {
  atomic {
    j = 0;
    do
    :: j < N && IS_SERVED(me, j) ->
       assert(TABLE(me, m, j) == TAG(m, 0, 0));
       FOR_EACH(IS_NEAR(me, i), write(TABLE(i, m, j), TAG(m, 0, 0)); far_arrived[WORD(i, j)] = m);
       j++
    :: j < N && !IS_SERVED(me, j) -> j++
    :: else -> j = 0; break
    od
  };
  atomic {
#ifndef NO_TABLES
    EACH_RANK(HAS_TABLE);
#endif
    FOR_EACH(i != me, read(TABLE(me, m, i), TAG(m, 0, 0)))
  }
}

/* --- Early --- */

#define FINISHED_OF(r) (IS_LINKED(r, me) -> finished[WORD(me, r)] : far_finished[WORD(me, r)])
#define HAS_FINISHED(r) ((r) >= N || (r) == me || FINISHED_OF((r) % N) >= m)
#define NEAR_FINISHED(r) ((r) >= N || !IS_NEAR(me, (r) % N) || finished[WORD(me, (r) % N)] >= m)

/* A gateway's relay of one rank that it serves, waited for. */
#define RELAY_ROWS(r) \
  if \
  :: r < N && IS_SERVED(me, r % N) -> atomic { finished[WORD(me, r % N)] >= m -> forward_rows(r) } \
  :: else \
  fi;
inline forward_rows(r) {
#ifdef SIGNAL_FIRST
  FOR_EACH(IS_NEAR(me, i), far_finished[WORD(i, r)] = m);
  forwards = forwards | (1 << r)
#else
  assert(SLOT(me, m, r) == TAG(m, 0, r));
  FOR_EACH(IS_NEAR(me, i), write(SLOT(i, m, r), TAG(m, 0, r)); far_finished[WORD(i, r)] = m)
#endif
}
#ifdef SIGNAL_FIRST
#define RELAY_LATER(r) \
  atomic { \
    if \
    :: r < N && (forwards >> r) % 2 -> FOR_EACH(IS_NEAR(me, i), write(SLOT(i, m, r), TAG(m, 0, r))) \
    :: else \
    fi \
  };
#endif

inline dispatch_early() {
  atomic {
    announce();
    FOR_EACH(!own && (IS_LINKED(me, i) || i == me), write(SLOT(i, m, me), TAG(m, 0, me)));
#ifndef GATE_WAITS
    FOR_EACH(!own && IS_LINKED(me, i), finished[WORD(i, me)] = m)
#endif
  };
#ifdef UNREAD_REFUSAL
  WITH_EACH_RANK(RELAY_ROWS)
#endif
  wait_for_arrivals();
  if
  :: !refused[m] ->
     exchange_tables();
#ifndef UNREAD_REFUSAL
     WITH_EACH_RANK(RELAY_ROWS)
#endif
#ifdef SIGNAL_FIRST
     WITH_EACH_RANK(RELAY_LATER)
     forwards = 0;
#endif
#ifdef GATE_WAITS
     atomic { FOR_EACH(IS_LINKED(me, i), finished[WORD(i, me)] = m) };
#endif
     atomic {
       EACH_RANK(HAS_FINISHED);
       FOR_EACH(true, read(SLOT(me, m, i), TAG(m, 0, i)))
     }
  :: else
  fi
}

/* What is put at home: one sum for each rank served. */
#define RELAY_SUM(r) \
  if \
  :: r < N && IS_SERVED(me, r % N) -> atomic { EACH_RANK(NEAR_FINISHED) -> add_rows(r) } \
  :: else \
  fi;
inline add_rows(r) {
  FOR_EACH(NODE(i) == NODE(me), read(RELAY_SLOT(me, m, r, i), TAG(m, 0, i)));
  write(SLOT(r, m, me), TAG(m, 0, me));
  finished[WORD(r, me)] = m
}

inline combine_early() {
  atomic {
    announce();
    FOR_EACH(!own && NODE(i) == NODE(me), write(SLOT(i, m, me), TAG(m, 0, me)));
    FOR_EACH(!own && NODE(i) != NODE(me), write(RELAY_SLOT(GATE(i), m, i, me), TAG(m, 0, me)));
    FOR_EACH(!own && IS_NEAR(me, i), finished[WORD(i, me)] = m)
  };
#ifdef UNREAD_REFUSAL
  WITH_EACH_RANK(RELAY_SUM)
#endif
  wait_for_arrivals();
  if
  :: !refused[m] ->
#ifndef UNREAD_REFUSAL
     WITH_EACH_RANK(RELAY_SUM)
#endif
     atomic {
       EACH_RANK(NEAR_FINISHED) && finished[WORD(me, GATE(me))] >= m;
       FOR_EACH(NODE(i) == NODE(me) || i == GATE(me), read(SLOT(me, m, i), TAG(m, 0, i)))
     }
  :: else
  fi
}

/* --- Late --- */

/* Sends to neighbours and to the gateway; takes from neighbours, from themselves or forwarded. */
#define CAN_SEND(r) \
  ((r) < N && (IS_NEAR(me, (r) % N) || (r) == GATE(me)) && sent[(r) % N] < ROUNDS && IS_FREE(me, (r) % N, me, sent[(r) % N]))
inline send(r) {
  write(STAGED_HALF(r, me, sent[r]), TAG(m, sent[r], me));
  sent[r]++;
  rounds[WORD(r, me)] = COUNT(m, sent[r])
}
#define WRITER(of) (NODE(of) == NODE(me) -> (of) : GATE(of))
#define COMES_FROM_NEIGHBOUR(r) ((r) < N && (r) != me && WRITER((r) % N) != me)
#define CAN_TAKE(r) (COMES_FROM_NEIGHBOUR(r) && took[(r) % N] < ROUNDS && rounds[WORD(me, (r) % N)] >= COUNT(m, took[(r) % N] + 1))
inline take(r) {
  read(STAGED_HALF(me, r, took[r]), TAG(m, took[r], r));
  took[r]++;
  TAKEN(WRITER(r), me, r) = COUNT(m, took[r])
}
#ifdef NO_NEIGHBOUR_TAKEN
#define HAS_ROOM(y, r) true
#else
#define HAS_ROOM(y, r) ((y) >= N || !IS_NEAR(me, (y) % N) || IS_FREE(me, (y) % N, r, took[r]))
#endif
#define ALL_HAVE_ROOM(r) (HAS_ROOM(0, r) && HAS_ROOM(1, r) && HAS_ROOM(2, r) && HAS_ROOM(3, r))
#define HAS_COME(r) ((r) < N && IS_SERVED(me, (r) % N) && took[(r) % N] < ROUNDS && rounds[WORD(me, (r) % N)] >= COUNT(m, took[(r) % N] + 1))
#define CAN_FORWARD(r) (HAS_COME(r) && ALL_HAVE_ROOM((r) % N))
inline forward(r) {
  FOR_EACH(IS_NEAR(me, i), write(STAGED_HALF(i, r, took[r]), TAG(m, took[r], r)); rounds[WORD(i, r)] = COUNT(m, took[r] + 1));
  read(STAGED_HALF(me, r, took[r]), TAG(m, took[r], r));
  took[r]++;
  TAKEN(r, me, r) = COUNT(m, took[r])
}
#define HAS_SENT(r) ((r) >= N || !(IS_NEAR(me, (r) % N) || (r) == GATE(me)) || sent[(r) % N] == ROUNDS)
#define HAS_TAKEN(r) ((r) >= N || (r) == me || took[(r) % N] == ROUNDS)

#define SEND_STEP(r) :: atomic { CAN_SEND(r) -> send(r) }
#define TAKE_STEP(r) :: atomic { CAN_TAKE(r) -> take(r) }
#ifdef EARLY_TAKEN
#define FORWARD_STEP(r) \
  :: atomic { HAS_COME(r) && TAKEN(r % N, me, r % N) < COUNT(m, took[r % N] + 1) -> TAKEN(r, me, r) = COUNT(m, took[r] + 1) } \
  :: atomic { CAN_FORWARD(r) && TAKEN(r % N, me, r % N) >= COUNT(m, took[r % N] + 1) -> forward(r) }
#else
#define FORWARD_STEP(r) :: atomic { CAN_FORWARD(r) -> forward(r) }
#endif

#define WAITED_SEND(r, limit) do :: r < N && (IS_NEAR(me, r % N) || r == GATE(me)) && sent[r % N] < limit -> atomic { CAN_SEND(r) -> send(r) } :: else -> break od;
#define WAITED_FORWARD(r, limit) do :: r < N && IS_SERVED(me, r % N) && took[r % N] < limit -> atomic { CAN_FORWARD(r) -> forward(r) } :: else -> break od;
#define WAITED_TAKE(r, limit) do :: COMES_FROM_NEIGHBOUR(r) && took[r % N] < limit -> atomic { CAN_TAKE(r) -> take(r) } :: else -> break od;
#define IN_TURN(step, limit) step(0, limit) step(1, limit) step(2, limit) step(3, limit)

inline dispatch_late() {
  atomic { announce() };
  wait_for_arrivals();
  exchange_tables();
#ifdef BLOCKING
  IN_TURN(WAITED_SEND, ROUNDS)
  IN_TURN(WAITED_FORWARD, ROUNDS)
  IN_TURN(WAITED_TAKE, ROUNDS)
  skip
#elif defined(LOCKSTEP)
  limit = 1;
  do
  :: limit <= ROUNDS ->
     IN_TURN(WAITED_SEND, limit)
     IN_TURN(WAITED_FORWARD, limit)
     IN_TURN(WAITED_TAKE, limit)
     limit++
  :: else -> limit = 0; break
  od
#else
  do
  WITH_EACH_RANK(SEND_STEP)
  WITH_EACH_RANK(FORWARD_STEP)
  WITH_EACH_RANK(TAKE_STEP)
  :: EACH_RANK(HAS_SENT) && EACH_RANK(HAS_TAKEN) -> break
  od
#endif
}

/* Pushes: to homes of this node directly, to others into the relay halves of their gateway here. What a rank pushes to itself (as home
 * or gateway) it writes when it adds. */
#define CAN_PUSH(r) \
  ((r) < N && NEEDS_PUSH((r) % N) && sent[(r) % N] < ROUNDS && IS_FREE(me, ADDER((r) % N), (r) % N, sent[(r) % N]))
#define ADDER(home) (NODE(home) == NODE(me) -> (home) : GATE(home))
#define NEEDS_PUSH(r) (ADDER(r) != me)
inline push(r) {
  if
  :: NODE(r) == NODE(me) ->
     write(HOME_HALF(r, me, sent[r]), TAG(m, sent[r], me));
     sent[r]++;
     rounds[WORD(r, me)] = COUNT(m, sent[r])
  :: else ->
     write(RELAY_HALF(GATE(r), r, me, sent[r]), TAG(m, sent[r], me));
     sent[r]++;
     RELAYED(GATE(r), r, me) = COUNT(m, sent[r])
  fi
}
/* took[home served]: rounds added and put at home. handed: rounds acknowledged to the owners. */
#ifndef ACK_AFTER_HOME
#define HANDED(r) took[r]
#else
#define HANDED(r) handed[r]
#endif
#ifdef NO_HOME_TAKEN
#define HOME_HAS_ROOM(r) true
#else
#define HOME_HAS_ROOM(r) IS_FREE(me, r, r, took[r])
#endif
#define OWNER_HAS_COME(o, r) \
  ((o) >= N || NODE((o) % N) != NODE(me) || (o) == me || RELAYED(me, r, (o) % N) >= COUNT(m, took[r] + 1))
#define CAN_ADD(r) \
  ((r) < N && IS_SERVED(me, (r) % N) && took[(r) % N] < ROUNDS && HOME_HAS_ROOM((r) % N) && OWNER_HAS_COME(0, (r) % N) && \
   OWNER_HAS_COME(1, (r) % N) && OWNER_HAS_COME(2, (r) % N) && OWNER_HAS_COME(3, (r) % N))
inline add(r) {
  write(RELAY_HALF(me, r, me, took[r]), TAG(m, took[r], me));
  FOR_EACH(NODE(i) == NODE(me), read(RELAY_HALF(me, r, i, took[r]), TAG(m, took[r], i)));
  write(HOME_HALF(r, me, took[r]), TAG(m, took[r], me));
  took[r]++;
  rounds[WORD(r, me)] = COUNT(m, took[r]);
#ifndef ACK_AFTER_HOME
  FOR_EACH(IS_NEAR(me, i), TAKEN(i, me, r) = COUNT(m, took[r]))
#endif
}
#define CAN_HAND(r) ((r) < N && IS_SERVED(me, (r) % N) && handed[(r) % N] < took[(r) % N] && TAKEN(me, (r) % N, (r) % N) >= COUNT(m, handed[(r) % N] + 1))
inline hand(r) {
  handed[r]++;
  FOR_EACH(IS_NEAR(me, i), TAKEN(i, me, r) = COUNT(m, handed[r]))
}
#define GIVES_HOME(o) (NODE(o) == NODE(me) || (o) == GATE(me))
#define HAS_GIVEN(o) ((o) >= N || !GIVES_HOME((o) % N) || (o) == me || rounds[WORD(me, (o) % N)] >= COUNT(m, took[me] + 1))
inline sum() {
  write(HOME_HALF(me, me, took[me]), TAG(m, took[me], me));
  FOR_EACH(GIVES_HOME(i), read(HOME_HALF(me, i, took[me]), TAG(m, took[me], i)));
  took[me]++;
  FOR_EACH(i != me && GIVES_HOME(i), TAKEN(i, me, me) = COUNT(m, took[me]))
}
#define PUSH_STEP(r) :: atomic { CAN_PUSH(r) -> push(r) }
#define ADD_STEP(r) :: atomic { CAN_ADD(r) -> add(r) }
#define HAND_STEP(r) :: atomic { CAN_HAND(r) -> hand(r) }
#define IS_PUSHED(r) \
  ((r) >= N || (!NEEDS_PUSH((r) % N) || sent[(r) % N] == ROUNDS) && (!IS_SERVED(me, (r) % N) || HANDED((r) % N) == ROUNDS))

inline combine_late() {
  atomic { announce() };
  wait_for_arrivals();
  do
  WITH_EACH_RANK(PUSH_STEP)
  WITH_EACH_RANK(ADD_STEP)
#ifdef ACK_AFTER_HOME
  WITH_EACH_RANK(HAND_STEP)
#endif
  :: atomic { took[me] < ROUNDS && HAS_GIVEN(0) && HAS_GIVEN(1) && HAS_GIVEN(2) && HAS_GIVEN(3) -> sum() }
  :: IS_PUSHED(0) && IS_PUSHED(1) && IS_PUSHED(2) && IS_PUSHED(3) && took[me] == ROUNDS -> break
  od
}

proctype rank(byte me) {
  byte m = 0, i = 0, j = 0;
  byte sent[N], took[N], handed[N];
  bit own = 0;
#ifdef SIGNAL_FIRST
  byte forwards = 0;
#endif
#ifdef LOCKSTEP
  byte limit = 0;
#endif
  do
  :: m == CALLS -> break
  :: m < CALLS ->
     atomic {
       m++;
#ifdef REFUSE
       if
       :: skip
       :: refuser == N -> own = 1; refuser = me; refused[m] = 1
       fi
#endif
     };
     if
     :: kind[m] == DISPATCH_EARLY -> dispatch_early()
     :: kind[m] == COMBINE_EARLY -> combine_early()
     :: kind[m] == DISPATCH_LATE -> dispatch_late()
     :: kind[m] == COMBINE_LATE -> combine_late()
     fi;
     atomic {
       i = 0;
       do :: i < N -> sent[i] = 0; took[i] = 0; handed[i] = 0; i++ :: else -> i = 0; break od;
       own = 0
     }
  od
}

init {
  byte r = 1;
  atomic {
    do
    :: r <= CALLS ->
#ifdef KIND
       kind[r] = KIND;
#elif defined(EARLY)
       if :: kind[r] = DISPATCH_EARLY :: kind[r] = COMBINE_EARLY fi;
#elif defined(LATE)
       if :: kind[r] = DISPATCH_LATE :: kind[r] = COMBINE_LATE fi;
#else
       if :: kind[r] = DISPATCH_EARLY :: kind[r] = COMBINE_EARLY :: kind[r] = DISPATCH_LATE :: kind[r] = COMBINE_LATE fi;
#endif
       r++
    :: else -> r = 0; break
    od;
    do :: r < N -> run rank(r); r++ :: else -> break od
  }
}
