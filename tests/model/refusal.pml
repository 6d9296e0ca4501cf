/* refusal.pml: a rank may refuse a call (wrong argument found before anything was sent). It still takes its epoch and signals arrival;
 * all ranks end that call with the same verdict: refused, if any rank refused it.
 *
 * N mapped ranks, CALLS calls. Each refuses or sends rows, then finished, on the latency path (before it knows of others) or, with
 * PRE, on the throughput path (once all have arrived, if nobody refused). Rows go to slots that change writers from call to call.
 * Where the refusal travels:
 *   default  in a call header that the peer keeps per parity of the epoch, written before the arrival word
 *   WORD     in the arrival word itself: a peer that is one call ahead has overwritten it (must fail)
 *   ONE      in a header without parities (must fail)
 * When a refused call ends:
 *   default  once everybody has arrived; nobody waits for finishes, rows that were sent in it are ignored
 *   FINISH   once everybody has finished, too (must hold)
 *   EARLY    once any refusal was seen, whoever has not arrived yet (must fail)
 */
#ifndef N
#define N 2
#endif
#ifndef CALLS
#define CALLS 4
#endif
#ifdef ONE
#define PARITY(m) 0
#else
#define PARITY(m) ((m) % 2)
#endif
#define PAIR(at, from) ((at) * N + (from))
#define HEADER(at, m, from) (((at) * 2 + PARITY(m)) * N + (from))
#define SLOT(at, m, from) slot_[((at) * 2 + (m) % 2) * N + ((from) + (m) / 2) % N]
#define TAG(m, from) ((m) * N + (from) + 1)
#define EPOCH(tag) (((tag) - 1) / N)

byte arrived[N * N];     /* epoch that the source has begun                 */
bit word_refused[N * N]; /* WORD: refusal bit beside it, written atomically */
byte finished[N * N];    /* epoch that the source has sent all of           */
byte header_epoch[N * 2 * N];
bit header_refused[N * 2 * N];
byte slot_[N * 2 * N];         /* what lies there unread, 0 = nothing             */
bit refused_by_any[CALLS + 1]; /* the truth: complete once all have arrived       */

inline send_rows() {
  atomic {
    i = 0;
    do
    :: i < N ->
       /* Nothing is overwritten unread, but rows of refused calls, which nobody reads. */
       assert(SLOT(i, m, me) == 0 || refused_by_any[EPOCH(SLOT(i, m, me))]);
       SLOT(i, m, me) = TAG(m, me);
       i++
    :: else -> break
    od
  };
  atomic { finish() }
}

inline finish() {
  i = 0;
  do :: i < N -> if :: i != me -> finished[PAIR(i, me)] = m :: else fi; i++ :: else -> i = 0; break od
}

proctype rank(byte me) {
  byte m = 1, i;
  bit refuse, verdict;
  do
  :: m > CALLS -> break
  :: m <= CALLS ->
     atomic {
       if
       :: refuse = 0
       :: refuse = 1; refused_by_any[m] = 1
       fi;
       verdict = refuse;
       i = 0
     };
     do
     :: i < N ->
        if
        :: i != me ->
           atomic { header_epoch[HEADER(i, m, me)] = m; header_refused[HEADER(i, m, me)] = refuse };
           atomic { arrived[PAIR(i, me)] = m; word_refused[PAIR(i, me)] = refuse; i++ }
        :: else -> i++
        fi
     :: else -> break
     od;
#ifndef PRE
     if :: !refuse -> send_rows() :: else fi;
#endif
     i = 0;
     do
#ifdef EARLY
     :: verdict -> break
#endif
     :: i < N ->
        atomic {
          (i == me || arrived[PAIR(me, i)] >= m);
          if
          :: i != me ->
#ifdef WORD
             verdict = verdict | word_refused[PAIR(me, i)]
#else
             assert(header_epoch[HEADER(me, m, i)] == m);
             verdict = verdict | header_refused[HEADER(me, m, i)]
#endif
          :: else
          fi;
          i++
        }
     :: i == N -> break
     od;
     assert(verdict == refused_by_any[m]); /* the same verdict everywhere */
#ifdef PRE
     if :: !verdict -> send_rows() :: else fi;
#endif
#ifdef FINISH
     if :: refuse || verdict -> atomic { finish() } :: else fi;
     i = 0;
     do :: i < N -> (i == me || finished[PAIR(me, i)] >= m); i++ :: else -> break od;
#endif
     if
     :: !verdict ->
        i = 0;
        do
        :: i < N ->
           atomic {
             (i == me || finished[PAIR(me, i)] >= m);
             assert(SLOT(me, m, i) == TAG(m, i));
             SLOT(me, m, i) = 0;
             i++
           }
        :: else -> break
        od
     :: else
     fi;
     m++
  od
}

init {
  byte r = 0;
  atomic { do :: r < N -> run rank(r); r++ :: else -> break od }
}
