/* exchange.pml: one node, every window mapped. N ranks make CALLS calls of one context; each is of any kind, the same on all ranks:
 *   LATENCY  header, arrived, rows into a parity's slots, finished; then all arrivals, then all finishes and their rows
 *   DIRECT   all arrivals first, each of them a grant; then rows into the one region, which the caller reads until its next DIRECT call
 *   STAGED   all arrivals first; then rounds into two halves per source; a half is written again once `taken` says so
 *   COMBINE  all arrivals first; then rounds of a home into two halves, whose slots change owners from round to round
 * Flows of STAGED and COMBINE are advanced in any order, none waits for another; these calls have no finishes.
 * Memory holds what lies in it unread, 0 = nothing: a write asserts 0, a read asserts the very call, round and source. A loop over peers without a wait in it is one step: words only
 * grow, so who sees all of it at once could as well have looked later.
 *
 * Switches, default off. KIND=x: all calls of that kind. FREE: numbers of rounds are chosen, 0 to ROUNDS for every pair. FULL:
 *   ROUNDS for all.
 * Must fail: ONE_PARITY; EQUAL (waits for equality); SKIP_ARRIVED (no arrival where there are no rows); NO_GRANT (rows before arrivals);
 *   EARLY_GRANT (granted, then released); EARLY_TAKEN (acknowledged, then copied); BLOCKING (one flow after the other).
 * Must hold: SKIP_FINISHED (no finish where there are no rows): arrivals alone protect the parities; ALTERNATING (rounds of sends and
 *   takes in turn, each waited for).
 */
#ifndef N
#define N 2
#endif
#ifndef CALLS
#define CALLS 4
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#define LATENCY 0
#define DIRECT 1
#define STAGED 2
#define COMBINE 3

#ifdef ONE_PARITY
#define PARITY(m) 0
#else
#define PARITY(m) ((m) % 2)
#endif
#ifdef EQUAL
#define REACHED(word, value) ((word) == (value))
#else
#define REACHED(word, value) ((word) >= (value))
#endif

#ifdef SKIP_ARRIVED
#define IS_TOLD(m, from, to) HAS_ROWS(m, from, to)
#define EVERYBODY_IS_TOLD false
#else
#define IS_TOLD(m, from, to) true
#define EVERYBODY_IS_TOLD true
#endif

#define NEXT(step) ((me + (step)) % N)
#define WORD(at, of) ((at) * N + (of))
#define COUNT(m, count) ((m) * 8 + (count))
#define TAG(m, round, of) (((m) * 4 + (round)) * 4 + (of) + 1)

#ifdef FREE
byte chosen[N * N];
#define NUM_ROUNDS(m, from, to) chosen[(from) * N + (to)]
#elif defined(FULL)
#define NUM_ROUNDS(m, from, to) ROUNDS
#else
/* None, some or all, different for every pair, home and call. */
#define NUM_ROUNDS(m, from, to) ((((from) == (to) -> (to) : (from) + 2 * (to)) + (m)) % 3 * ROUNDS / 2)
#endif
#define HAS_ROWS(m, from, to) (NUM_ROUNDS(m, from, to) > 0)
#define HOME_ROUNDS(m, home) NUM_ROUNDS(m, home, home)

byte kind[CALLS + 1];
byte arrived[N * N]; /* [at][of], one writer each, never cleared */
byte finished[N * N];
byte rounds[N * N];
byte taken[N * N];
byte header_[N * 2 * N];
byte slot_[N * 2 * N];
byte region_[N * N];
byte stage_[N * 2 * N];

#define HEADER(at, m, of) header_[((at) * 2 + PARITY(m)) * N + (of)]
/* Slots of a combine change owners from call to call, and dispatch lies over them. */
#define SLOT(at, m, of) slot_[((at) * 2 + PARITY(m)) * N + ((of) + (m) / 2) % N]
#define REGION(at, m, of) region_[(at) * N + ((of) + (m)) % N]
#define STAGED_HALF(at, of, round) stage_[(at) * 2 * N + (of) * 2 + (round) % 2]
#define HOME_HALF(at, of, round) stage_[(at) * 2 * N + ((round) % 2) * N + ((of) + (round) / 2) % N]

#define CAN_SEND(p) \
  (sent[p] < NUM_ROUNDS(m, me, p) && (sent[p] < 2 || REACHED(taken[WORD(me, p)], COUNT(m, sent[p] - 1))))
#define CAN_TAKE(p) (took[p] < NUM_ROUNDS(m, p, me) && REACHED(rounds[WORD(me, p)], COUNT(m, took[p] + 1)))
#define IS_DONE(p) (sent[p] == NUM_ROUNDS(m, me, p) && took[p] == NUM_ROUNDS(m, p, me))
#define CAN_PUSH(p) (sent[p] < HOME_ROUNDS(m, p) && (sent[p] < 2 || REACHED(taken[WORD(me, p)], COUNT(m, sent[p] - 1))))
#define CAN_PUSH_OWN (sent[me] < HOME_ROUNDS(m, me) && sent[me] < took[me] + 2)
#define HAS_PUSHED(p) REACHED(rounds[WORD(me, p)], COUNT(m, took[me] + 1))

inline write(cell, tag) {
  assert(cell == 0); /* nothing is overwritten unread */
  cell = tag
}
inline read(cell, tag) {
  assert(cell == tag);
  cell = 0
}

inline announce() {
  atomic { i = 0; do :: i < N -> if :: i != me && IS_TOLD(m, me, i) -> write(HEADER(i, m, me), m) :: else fi; i++ :: else -> break od };
  atomic {
    i = 0;
    do
    :: i < N ->
       if
       :: i != me && IS_TOLD(m, me, i) -> arrived[WORD(i, me)] = m
       :: else
       fi;
       i++
    :: else -> break
    od;
    i = 0
  }
}

inline wait_for_arrivals() {
  do
  :: i < N ->
     atomic {
       (i == me || !IS_TOLD(m, i, me) || REACHED(arrived[WORD(me, i)], m));
       assert(i == me || !EVERYBODY_IS_TOLD || arrived[WORD(me, i)] <= m + 1); /* nobody is more than one call ahead */
       if :: i != me && IS_TOLD(m, i, me) -> read(HEADER(me, m, i), m) :: else fi;
       i++
     }
  :: else -> i = 0; break
  od
}

inline finish() {
  atomic {
    i = 0;
    do
    :: i < N ->
       if
#ifdef SKIP_FINISHED
       :: i != me && HAS_ROWS(m, me, i) -> finished[WORD(i, me)] = m
#else
       :: i != me -> finished[WORD(i, me)] = m
#endif
       :: else
       fi;
       i++
    :: else -> break
    od;
    i = 0
  }
}

#ifdef SKIP_FINISHED
#define HAS_FINISHED(of) ((of) == me || !HAS_ROWS(m, of, me) || REACHED(finished[WORD(me, of)], m))
#else
#define HAS_FINISHED(of) ((of) == me || REACHED(finished[WORD(me, of)], m))
#endif

inline latency() {
  atomic { i = 0; do :: i < N -> if :: HAS_ROWS(m, me, i) -> write(SLOT(i, m, me), TAG(m, 0, me)) :: else fi; i++ :: else -> break od };
  finish();
  wait_for_arrivals();
  do
  :: i < N ->
     atomic { HAS_FINISHED(i); if :: HAS_ROWS(m, i, me) -> read(SLOT(me, m, i), TAG(m, 0, i)) :: else fi; i++ }
  :: else -> i = 0; break
  od
}

inline direct() {
#ifndef NO_GRANT
  wait_for_arrivals();
#endif
  atomic { i = 0; do :: i < N -> if :: HAS_ROWS(m, me, i) -> write(REGION(i, m, me), TAG(m, 0, me)) :: else fi; i++ :: else -> break od };
  finish();
#ifdef NO_GRANT
  wait_for_arrivals();
#endif
  do
  :: i < N ->
     atomic { HAS_FINISHED(i); assert(!HAS_ROWS(m, i, me) || REGION(me, m, i) == TAG(m, 0, i)); i++ }
  :: else -> i = 0; held = m; break
  od
}

/* The caller's last look at a result in the region. */
inline release() {
  atomic {
    i = 0;
    do
    :: held > 0 && i < N -> if :: HAS_ROWS(held, i, me) -> read(REGION(me, held, i), TAG(held, 0, i)) :: else fi; i++
    :: else -> break
    od;
    held = 0;
    i = 0
  }
}

inline send(p) {
  write(STAGED_HALF(p, me, sent[p]), TAG(m, sent[p], me));
  sent[p]++;
  rounds[WORD(p, me)] = COUNT(m, sent[p])
}
inline take(p) {
#ifdef EARLY_TAKEN
  taken[WORD(p, me)] = COUNT(m, took[p] + 1);
  early = 1
#else
  read(STAGED_HALF(me, p, took[p]), TAG(m, took[p], p));
  took[p]++;
  taken[WORD(p, me)] = COUNT(m, took[p])
#endif
}
#ifdef EARLY_TAKEN
#define FLOW_TAKE(p) \
  :: atomic { early == 0 && CAN_TAKE(p) -> take(p) } \
  :: atomic { early == 1 && CAN_TAKE(p) -> read(STAGED_HALF(me, p, took[p]), TAG(m, took[p], p)); took[p]++; early = 0 }
#else
#define FLOW_TAKE(p) :: atomic { CAN_TAKE(p) -> take(p) }
#endif

#ifdef BLOCKING
inline exchange_rounds() {
  i = 1;
  do
  :: i < N && sent[NEXT(i)] < NUM_ROUNDS(m, me, NEXT(i)) -> atomic { CAN_SEND(NEXT(i)) -> send(NEXT(i)) }
  :: i < N && sent[NEXT(i)] == NUM_ROUNDS(m, me, NEXT(i)) -> i++
  :: i == N -> break
  od;
  i = 1;
  do
  :: i < N && took[NEXT(i)] < NUM_ROUNDS(m, NEXT(i), me) -> atomic { CAN_TAKE(NEXT(i)) -> take(NEXT(i)) }
  :: i < N && took[NEXT(i)] == NUM_ROUNDS(m, NEXT(i), me) -> i++
  :: i == N -> break
  od
}
#elif defined(ALTERNATING)
inline exchange_rounds() {
  byte round = 0;
  do
  :: round <= ROUNDS ->
     i = 1;
     do
     :: i < N ->
        atomic {
          (round >= NUM_ROUNDS(m, me, NEXT(i)) || CAN_SEND(NEXT(i)));
          if :: round < NUM_ROUNDS(m, me, NEXT(i)) -> send(NEXT(i)) :: else fi;
          i++
        }
     :: else -> break
     od;
     i = 1;
     do
     :: i < N ->
        atomic {
          (round == 0 || round > NUM_ROUNDS(m, NEXT(i), me) || CAN_TAKE(NEXT(i)));
          if :: round > 0 && round <= NUM_ROUNDS(m, NEXT(i), me) -> take(NEXT(i)) :: else fi;
          i++
        }
     :: else -> break
     od;
     round++
  :: else -> round = 0; break
  od
}
#else
inline exchange_rounds() {
  do
  :: atomic { CAN_SEND(NEXT(1)) -> send(NEXT(1)) }
  FLOW_TAKE(NEXT(1))
#if N == 3
  :: atomic { CAN_SEND(NEXT(2)) -> send(NEXT(2)) }
  FLOW_TAKE(NEXT(2))
  :: IS_DONE(NEXT(1)) && IS_DONE(NEXT(2)) -> break
#else
  :: IS_DONE(NEXT(1)) -> break
#endif
  od
}
#endif

inline staged() {
  wait_for_arrivals();
  exchange_rounds();
  atomic { i = 0; do :: i < N -> sent[i] = 0; took[i] = 0; i++ :: else -> i = 0; break od }
}

inline push(p) {
  write(HOME_HALF(p, me, sent[p]), TAG(m, sent[p], me));
  sent[p]++;
  if :: p != me -> rounds[WORD(p, me)] = COUNT(m, sent[p]) :: else fi
}
inline sum() {
  i = 0;
  do :: i < N -> read(HOME_HALF(me, i, took[me]), TAG(m, took[me], i)); i++ :: else -> break od;
  took[me]++;
  i = 0;
  do :: i < N -> if :: i != me -> taken[WORD(i, me)] = COUNT(m, took[me]) :: else fi; i++ :: else -> break od
}
inline combine() {
  wait_for_arrivals();
  do
  :: atomic { CAN_PUSH(NEXT(1)) -> push(NEXT(1)) }
  :: atomic { CAN_PUSH_OWN -> push(me) }
#if N == 3
  :: atomic { CAN_PUSH(NEXT(2)) -> push(NEXT(2)) }
  :: atomic { took[me] < sent[me] && HAS_PUSHED(NEXT(1)) && HAS_PUSHED(NEXT(2)) -> sum() }
#else
  :: atomic { took[me] < sent[me] && HAS_PUSHED(NEXT(1)) -> sum() }
#endif
  :: took[me] == HOME_ROUNDS(m, me) && sent[NEXT(1)] == HOME_ROUNDS(m, NEXT(1)) && sent[NEXT(N - 1)] == HOME_ROUNDS(m, NEXT(N - 1)) -> break
  od;
  atomic { i = 0; do :: i < N -> sent[i] = 0; took[i] = 0; i++ :: else -> i = 0; break od }
}

proctype rank(byte me) {
  byte m = 0, i = 0, held = 0;
  byte sent[N], took[N];
#ifdef EARLY_TAKEN
  bit early = 0;
#endif
  do
  :: m == CALLS -> break
  :: m < CALLS ->
     m++;
#ifdef EARLY_GRANT
     announce();
     if :: kind[m] == DIRECT -> release() :: else fi;
#else
     if :: kind[m] == DIRECT -> release() :: else fi;
     announce();
#endif
     if
     :: kind[m] == LATENCY -> latency()
     :: kind[m] == DIRECT -> direct()
     :: kind[m] == STAGED -> staged()
     :: kind[m] == COMBINE -> combine()
     fi
  od;
  release()
}

init {
  byte r = 1;
  atomic {
    do
    :: r <= CALLS ->
#ifdef KIND
       kind[r] = KIND;
#else
       if :: kind[r] = LATENCY :: kind[r] = DIRECT :: kind[r] = STAGED :: kind[r] = COMBINE fi;
#endif
       r++
    :: else -> r = 0; break
    od;
#ifdef FREE
    do
    :: r < N * N -> do :: chosen[r] < ROUNDS -> chosen[r]++ :: break od; r++
    :: else -> r = 0; break
    od;
#endif
    do :: r < N -> run rank(r); r++ :: else -> break od
  }
}
