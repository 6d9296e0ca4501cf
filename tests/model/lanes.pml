/* lanes.pml: peers whose memory is not mapped. What is put travels on lanes: puts to one peer overtake each other, only a fence keeps
 * later ones behind earlier ones. N = 2: both remote. N = 3: what rank 1 puts
 * travels so; ranks 0 and 2 are mapped to all.
 * A call is EARLY (header, arrived, row, finished; then all arrivals, all finishes and rows) or LATE (all arrivals, then ROUNDS rounds
 * into two halves, acknowledged by taken); all calls of one kind. There is a fence before each signal, and nowhere else.
 * Slots of EARLY change writers from call to call. REFUSE: a rank may refuse one call: it sends nothing but its header, and everybody
 * ends that call once all have arrived. WAITED: and once everybody who did not refuse has finished, so that no row is on its way then.
 *
 * Must fail: NO_FENCE_ARRIVED, NO_FENCE_FINISHED, NO_FENCE_ROUNDS, NO_FENCE_TAKEN (no fence before that signal); REFUSE without WAITED
 *   with 3 ranks (a row of the refused call lands on one of two calls later, which another rank put there).
 */
#ifndef N
#define N 2
#endif
#ifndef CALLS
#define CALLS 3
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif

#define IS_REMOTE(a, b) ((a) != (b) && (N == 2 || (a) == 1))
#define WORD(at, of) ((at) * N + (of))
#define COUNT(m, count) ((m) * 8 + (count))
#define TAG(m, round, of) (((m) * 4 + (round)) * 4 + (of) + 1)

byte arrived[N * N]; /* [at][of] */
byte finished[N * N];
byte rounds[N * N];
byte taken[N * N];
byte header_[N * 2 * N]; /* epoch * 2 + refused */
byte slot_[N * 2 * N];
byte half_[N * 2 * N];
bit has_refused = 0; /* one refusal is enough */
bit refused[CALLS + 1];

#define HEADER(at, m, of) header_[((at) * 2 + (m) % 2) * N + (of)]
#define SLOT(at, m, of) slot_[((at) * 2 + (m) % 2) * N + ((of) + (m) / 2) % N]
#define HALF(at, of, round) half_[((at) * 2 + (round) % 2) * N + (of)]

/* What is on its way: [to][of][call][what], 1 + number of fences before it since the lanes were empty; 0 = nothing. */
#define HEADER_PUT 0
#define ARRIVED_PUT 1
#define FINISHED_PUT 2
#define ROW_PUT 3     /* + round */
#define ROUNDS_PUT 7  /* + round */
#define TAKEN_PUT 11  /* + round */
#ifdef LATE
#define KINDS 15
#else
#define KINDS 4
#endif
#define PER_PAIR (CALLS * KINDS)
byte lanes[N * N * PER_PAIR];
byte num_fences[N * N];
byte num_puts[N * N];
byte num_on_way = 0;
#define LANE(pair, m, what) lanes[(pair) * PER_PAIR + ((m) - 1) * KINDS + (what)]

/* What a put does when it lands; `m`, `to` and `from` say whose. */
inline land(to, from, m, what, is_refused) {
  if
  :: what == HEADER_PUT -> HEADER(to, m, from) = (m) * 2 + is_refused
  :: what == ARRIVED_PUT -> arrived[WORD(to, from)] = m
  :: what == FINISHED_PUT -> finished[WORD(to, from)] = m
#ifdef LATE
  :: what >= ROW_PUT && what < ROUNDS_PUT -> assert(HALF(to, from, what - ROW_PUT) == 0); HALF(to, from, what - ROW_PUT) = TAG(m, what - ROW_PUT, from)
  :: what >= ROUNDS_PUT && what < TAKEN_PUT -> rounds[WORD(to, from)] = COUNT(m, what - ROUNDS_PUT + 1)
  :: what >= TAKEN_PUT -> taken[WORD(to, from)] = COUNT(m, what - TAKEN_PUT + 1)
#else
  :: what == ROW_PUT ->
#ifndef REFUSE
     assert(SLOT(to, m, from) == 0); /* nothing is overwritten unread; rows from refused calls are never read */
#endif
     SLOT(to, m, from) = TAG(m, 0, from)
#endif
  fi
}

inline put(to, what, is_refused) {
  if
  :: IS_REMOTE(me, to) -> LANE(WORD(to, me), m, what) = 1 + num_fences[WORD(to, me)] + 128 * is_refused; num_puts[WORD(to, me)]++; num_on_way++
  :: else -> land(to, me, m, what, is_refused)
  fi
}
inline fence(to) {
  if :: num_puts[WORD(to, me)] > 0 -> num_fences[WORD(to, me)]++ :: else fi
}

/* Lets any put land that no fence holds back. */
proctype network() {
  byte pair = 0, k = 0, least = 0;
end:
  do
  :: atomic {
       num_on_way > 0 ->
       pair = 0;
       do
       :: pair < N * N && num_puts[pair] > 0 -> break
       :: pair < N * N -> pair++
       :: pair == N * N -> goto end_of_step
       od;
       least = 127;
       k = 0;
       do
       :: k < PER_PAIR ->
          if :: lanes[pair * PER_PAIR + k] > 0 && lanes[pair * PER_PAIR + k] % 128 < least -> least = lanes[pair * PER_PAIR + k] % 128 :: else fi;
          k++
       :: else -> k = 0; break
       od;
       do
       :: k < PER_PAIR && lanes[pair * PER_PAIR + k] % 128 == least -> break
       :: k < PER_PAIR -> k++
       :: k == PER_PAIR -> goto end_of_step
       od;
       least = lanes[pair * PER_PAIR + k] / 128;
       lanes[pair * PER_PAIR + k] = 0;
       num_puts[pair]--;
       num_on_way--;
       if :: num_puts[pair] == 0 -> num_fences[pair] = 0 :: else fi;
       land(pair / N, pair % N, 1 + k / KINDS, k % KINDS, least)
     };
end_of_step:
     atomic { pair = 0; k = 0; least = 0 }
  od
}

#define NEXT(step) ((me + (step)) % N)

inline announce(is_refused) {
  atomic {
    i = 1;
    do
    :: i < N ->
       put(NEXT(i), HEADER_PUT, is_refused);
#ifndef NO_FENCE_ARRIVED
       fence(NEXT(i));
#endif
       put(NEXT(i), ARRIVED_PUT, 0);
       i++
    :: else -> i = 0; break
    od
  }
}

inline wait_for_arrivals() {
  atomic {
    arrived[WORD(me, NEXT(1))] >= m && arrived[WORD(me, NEXT(N - 1))] >= m;
    i = 0;
    do
    :: i < N ->
       assert(i == me || HEADER(me, m, i) / 2 == m);
       is_refused = is_refused || (i != me && HEADER(me, m, i) % 2);
       i++
    :: else -> i = 0; break
    od
  }
}

inline send_rows() {
  atomic {
    i = 0;
    do
    :: i < N ->
       put(i, ROW_PUT, 0);
       if
       :: i != me ->
#ifndef NO_FENCE_FINISHED
          fence(i);
#endif
          put(i, FINISHED_PUT, 0)
       :: else
       fi;
       i++
    :: else -> i = 0; break
    od
  }
}

#define HAS_FINISHED(of) (finished[WORD(me, of)] >= m)
#define HAS_REFUSED(of) (HEADER(me, m, of) % 2 == 1)

proctype rank(byte me) {
  byte m = 0, i = 0;
  bit own = 0, is_refused = 0;
#ifdef LATE
  byte sent[N], took[N];
#endif
  do
  :: m == CALLS -> break
  :: m < CALLS ->
     atomic {
       m++;
       is_refused = 0;
#ifdef REFUSE
       if
       :: own = 0
       :: !has_refused && (N == 2 || me == 2) -> own = 1; has_refused = 1; refused[m] = 1
       fi;
       is_refused = own
#endif
     };
     announce(own);
#ifdef LATE
     wait_for_arrivals();
     do
#define SEND(p) \
  :: atomic { \
       sent[p] < ROUNDS && (sent[p] < 2 || taken[WORD(me, p)] >= COUNT(m, sent[p] - 1)) -> \
       put(p, ROW_PUT + sent[p], 0); \
       FENCE_ROUNDS(p); \
       put(p, ROUNDS_PUT + sent[p], 0); \
       sent[p]++ \
     }
#define TAKE(p) \
  :: atomic { \
       took[p] < ROUNDS && rounds[WORD(me, p)] >= COUNT(m, took[p] + 1) -> \
       assert(HALF(me, p, took[p]) == TAG(m, took[p], p)); \
       HALF(me, p, took[p]) = 0; \
       FENCE_TAKEN(p); \
       put(p, TAKEN_PUT + took[p], 0); \
       took[p]++ \
     }
#ifdef NO_FENCE_ROUNDS
#define FENCE_ROUNDS(p) skip
#else
#define FENCE_ROUNDS(p) fence(p)
#endif
#ifdef NO_FENCE_TAKEN
#define FENCE_TAKEN(p) skip
#else
#define FENCE_TAKEN(p) fence(p)
#endif
     SEND(NEXT(1))
     TAKE(NEXT(1))
#if N == 3
     SEND(NEXT(2))
     TAKE(NEXT(2))
#endif
     :: sent[NEXT(1)] == ROUNDS && took[NEXT(1)] == ROUNDS && sent[NEXT(N - 1)] == ROUNDS && took[NEXT(N - 1)] == ROUNDS -> break
     od;
     atomic { i = 0; do :: i < N -> sent[i] = 0; took[i] = 0; i++ :: else -> i = 0; break od }
#else
     if :: own == 0 -> send_rows() :: else fi;
     wait_for_arrivals();
     if
     :: is_refused ->
        assert(refused[m]);
#ifdef WAITED
        (HAS_REFUSED(NEXT(1)) || HAS_FINISHED(NEXT(1))) && (HAS_REFUSED(NEXT(N - 1)) || HAS_FINISHED(NEXT(N - 1)));
#endif
        skip
     :: else ->
        assert(!refused[m]);
        atomic {
          HAS_FINISHED(NEXT(1)) && HAS_FINISHED(NEXT(N - 1));
          i = 0;
          do :: i < N -> assert(SLOT(me, m, i) == TAG(m, 0, i)); SLOT(me, m, i) = 0; i++ :: else -> i = 0; break od
        }
     fi
#endif
  od
}

init {
  byte r = 0;
  atomic {
    run network();
    do :: r < N -> run rank(r); r++ :: else -> break od
  }
}
